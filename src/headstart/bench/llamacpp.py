"""llama.cpp as a peer: plain decoding through its Python binding, its own speculation through its own program.

The binding cannot draft with a model; the program `llama-speculative-simple` can, and looks prompts up in C++. It is found on
the search path, loads its models for every answer, and times its decoding itself.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, final

from headstart.bench.peers import Peer, Setup
from headstart.bench.speed import Answer, Way
from headstart.bench.ways import Timer
from headstart.errors import MissingExtraError, ModelError

__all__ = ["PROGRAM", "LlamaCppWay", "LlamaProgramWay", "open_peer"]

PROGRAM = "llama-speculative-simple"
_SPEED = re.compile(r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds")
_NEUTRAL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}


def open_peer(setup: Setup) -> Peer:
    """llama.cpp on the same GGUF file. Raises MissingExtraError without its binding, ModelError for what is no GGUF file."""
    if setup.source.suffix.lower() != ".gguf":
        raise ModelError(f"llama.cpp reads .gguf files, got {str(setup.source)!r}; compare with transformers instead")
    try:
        import llama_cpp
    except ImportError:
        raise MissingExtraError("llama-cpp-python", "bench", "--against llama.cpp") from None
    ways: list[Way] = [LlamaCppWay(setup)]
    lacks: list[str] = []
    wished = bool(setup.gammas and (setup.looks_up or setup.drafts))
    program = shutil.which(PROGRAM)
    if wished and program is None:
        lacks.append(f"llama.cpp's own speculation is left out: {PROGRAM} is not on the search path; build it from llama.cpp")
    elif wished:
        assert program is not None
        drafts = [("ngram", None)] if setup.looks_up else []
        for name, draft in (*drafts, *setup.drafts):
            if draft is not None and draft.suffix.lower() != ".gguf":
                lacks.append(f"llama.cpp with {name} is left out: it reads .gguf files, got {str(draft)!r}")
                continue
            ways += [LlamaProgramWay(Path(program), setup, name=name, draft=draft, gamma=gamma) for gamma in setup.gammas]
    return Peer(name="llama.cpp", ways=tuple(ways), about={"version": llama_cpp.__version__}, lacks=tuple(lacks))


@final
class LlamaCppWay:
    """Plain decoding."""

    name = "llama.cpp"
    exact = False

    def __init__(self, setup: Setup) -> None:
        import llama_cpp

        self._setup = setup
        threads = setup.threads
        self._peer: Any = llama_cpp.Llama(
            model_path=str(setup.source),
            n_ctx=setup.context,
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=0,
            verbose=False,
        )

    def answer(self, prompt: str, *, max_tokens: int, temperature: float, seed: int) -> Answer:
        """Generate once; from the first token on the clock runs."""
        self._peer.set_seed(seed)
        timer = Timer()
        for token in self._peer.generate(self._setup.llm.prompt_ids(prompt), temp=temperature, reset=True, **_NEUTRAL):
            timer.add([int(token)])
            if token in self._setup.end_ids or len(timer.tokens) >= max_tokens:
                break
        return timer.answer(max_tokens=max_tokens)


@final
class LlamaProgramWay:
    """Speculation by `llama-speculative-simple`: with a draft model, or without one by n-grams."""

    exact = False

    def __init__(self, program: Path, setup: Setup, *, name: str, draft: Path | None, gamma: int) -> None:
        self.name = f"llama.cpp {name} γ={gamma}"
        self._setup = setup
        threads = str(setup.threads)
        self._command = [str(program), "-m", str(setup.source), "-t", threads, "-c", str(setup.context)]
        self._command += ["--spec-draft-n-max", str(gamma), "--log-colors", "off"]
        if draft is None:
            # Its defaults look for 12 tokens that came before, which short answers hardly have; ours looks for at most 3.
            self._command += ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3"]
            self._command += ["--spec-ngram-simple-size-m", str(gamma)]
        else:
            self._command += ["--spec-type", "draft-simple", "-md", str(draft), "-td", threads]

    def answer(self, prompt: str, *, max_tokens: int, temperature: float, seed: int) -> Answer:
        """Generate once, in a process of its own. Raises ModelError where it ends without saying its speed."""
        tokenizer = self._setup.llm.tokenizer
        assert tokenizer is not None  # a GGUF file has one
        text = "".join(tokenizer.token_text(token) for token in self._setup.llm.prompt_ids(prompt))
        asked = ["-n", str(max_tokens), "--temp", f"{temperature:g}", "--seed", str(seed), "-p", text]
        asked += ["--top-k", "0", "--top-p", "1", "--min-p", "0"]
        done = subprocess.run([*self._command, *asked], capture_output=True, check=False)
        said = done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")
        speed = _SPEED.search(said)
        if speed is None:
            last = said.strip().splitlines()[-1:] or ["nothing"]
            raise ModelError(f"{PROGRAM} did not say how fast it was; the last it said is {last[0]:.200}")
        answered = done.stdout.decode(errors="replace").strip("\n").removeprefix(text).strip("\n")
        tokens = tuple(tokenizer.encode(answered)) if answered else ()
        return Answer(token_ids=tokens[:max_tokens], seconds=float(speed.group(2)), timed_tokens=int(speed.group(1)), rounds=None)
