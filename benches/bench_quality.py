"""How far quantised arithmetic strays from the model: KL to the dequantised float32 reference, ours and llama.cpp's, paired.

python benches/bench_quality.py FILE.gguf TEXT_FILE [--positions 2048]: the same tokens through transformers in float32 (the
reference), our native engine and llama.cpp; mean KL(reference ‖ engine) over positions, and the ratio of means with a bootstrap
interval over blocks of 64 positions. The last line on stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from bench_costs import Ours
from peers import LlamaCpp

from headstart.interfaces import Ask
from headstart.models.transformers import TransformersModel
from headstart.text import Tokenizer

CHUNK = 256  # tokens of one window; every window starts afresh


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """[rows, vocab] in float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def divergences(reference: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """[rows] KL(reference ‖ logits)."""
    p = log_softmax(reference)
    return (np.exp(p) * (p - log_softmax(logits[:, : p.shape[1]]))).sum(axis=1)


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--positions", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    a = parser.parse_args()
    tokens = Tokenizer.from_gguf(a.file).encode(a.text.read_text(encoding="utf-8"))[: a.positions]
    reference = TransformersModel.load(a.file, dtype="float32", threads=a.threads)
    engines: list[Any] = [Ours(a.file, a.threads)]
    try:
        engines.append(LlamaCpp(a.file, a.threads))
    except ImportError:
        print("llama-cpp-python is not installed: our own figures only", file=sys.stderr)
    found: dict[str, list[np.ndarray]] = {engine.name: [] for engine in engines}
    agree: dict[str, int] = dict.fromkeys(found, 0)
    for start in range(0, len(tokens) - CHUNK + 1, CHUNK):
        window = tokens[start : start + CHUNK]
        (scores,) = reference.score([Ask(cache=reference.open(), tokens=window)])
        for engine in engines:
            engine.rewind(0)
            logits = np.array(engine.score(window, 0))
            found[engine.name].append(divergences(scores.logits, logits))
            agree[engine.name] += int((scores.logits.argmax(1) == logits[:, : scores.logits.shape[1]].argmax(1)).sum())
        print(f"{start + CHUNK} of {len(tokens)} positions", file=sys.stderr)
    kl = {name: np.concatenate(parts) for name, parts in found.items()}
    document: dict[str, Any] = {
        "bench": "quality",
        "file": a.file.name,
        "positions": int(kl["headstart"].size),
        "mean_kl": {name: float(values.mean()) for name, values in kl.items()},
        "same_argmax": {name: agree[name] / kl[name].size for name in kl},
        "versions": {name: version(name) for name in ("headstart", "torch", "transformers")},
    }
    if "llama.cpp" in kl:
        blocks = {name: values[: values.size // 64 * 64].reshape(-1, 64).mean(1) for name, values in kl.items()}
        rng = np.random.default_rng(0)
        picks = rng.integers(0, len(blocks["headstart"]), (4000, len(blocks["headstart"])))
        ratios = blocks["headstart"][picks].mean(1) / blocks["llama.cpp"][picks].mean(1)
        document["ratio"] = float(kl["headstart"].mean() / kl["llama.cpp"].mean())
        document["ratio_interval_95"] = [float(x) for x in np.percentile(ratios, [2.5, 97.5])]
    print(json.dumps(document))


if __name__ == "__main__":
    main()
