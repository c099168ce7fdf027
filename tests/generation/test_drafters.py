"""Every drafter by its name, as users load it, on both engines: the plain text, and drafts that are worth something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headstart
from headstart import drafting
from headstart.checkpoints import EagleConfig, EagleHead, MedusaHead, Tensor, write_head
from headstart.generation import LLM
from headstart.references import find_head
from headstart.shapes import Shape
from headstart.text import Tokenizer
from tests.checkpoints.heads import tensor
from tests.generation.tiny import folder, tiny

PROMPTS = ["the cat sat on the mat, the end: the cat sat on", "END END. the then there", "naïve 東京 😀 1234"]
NAMES = (
    "suffix",
    "suffix+ngram",
    f"ngram+model:{folder('drafter')}",
    f"cross:{folder('swapped')}",
    f"suffix+cross:{folder('raw')}",
    "skip:1",
    "ngram+skip:1",
)
CUT = (f"model:{folder('drafter')}", f"cross:{folder('swapped')}", "skip:1", f"suffix+model:{folder('drafter')}")


# kind of head → a random one that fits a model: by its hidden size, its number of layers and its vocabulary
HEADS = ("eagle", "medusa")


def head_for(kind: str, model: Any, folder: Path) -> str:
    """The name of a drafter that runs a random head, written to `folder`, beside `model`."""
    rng = np.random.default_rng(0)
    hidden, ids = model.hidden_size, np.arange(0, model.vocab_size, 3)
    head: EagleHead | MedusaHead
    if kind == "eagle":
        layers = (0, model.num_layers // 2, model.num_layers - 1)
        sizes = {"hidden_size": hidden, "target_hidden_size": hidden, "intermediate_size": 32, "vocab_size": model.vocab_size}
        heads = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 16}
        config = EagleConfig(generation=3, draft_vocab_size=len(ids), feature_layers=layers, **sizes, **heads)
        weights = {name: tensor(rng, shape) for name, shape in config.shapes().items()}
        head = EagleHead(config=config, weights=weights, token_ids=ids)
    else:
        weights = {f"{i}.1.weight": Tensor.of(model.head_rows(ids)) for i in range(3)}
        weights |= {f"{i}.0.linear.weight": tensor(rng, (hidden, hidden)) for i in range(3)}
        weights |= {f"{i}.0.linear.bias": tensor(rng, (hidden,)) for i in range(3)}
        head = MedusaHead(
            num_heads=3, num_layers=1, hidden_size=hidden, vocab_size=model.vocab_size, draft_vocab_size=len(ids),
            weights=weights, token_ids=ids,
        )  # fmt: skip
    write_head(head, folder / kind, "eagle3" if kind == "eagle" else "vllm-medusa")
    return f"{kind}:{folder / kind}"


def load(drafter: str, **options: Any) -> LLM:
    """The tiny network in float32, with a drafter by name."""
    return headstart.load(folder("target"), drafter=drafter, dtype="float32", device="cpu", threads=1, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in NAMES), *((name, {"draft_vocab": 280}) for name in CUT), ("suffix", {"memory": 100})],
    ids=lambda value: str(value).replace(str(folder("target").parent), ""),
)
def test_on_transformers(name: str, options: dict[str, Any]) -> None:
    """Greedy, and with a seed at temperature 1: token for token plain decoding, alone and side by side."""
    llm, plain = load(name, **options), tiny(drafter="none")
    drafted = 0
    for ask in ({"temperature": 0}, {"temperature": 1.0, "seed": 3}, {"temperature": 1.0, "seed": 4, "repetition_penalty": 1.3}):
        want = [out.token_ids for out in plain.generate(PROMPTS, max_tokens=24, **ask)]
        together = llm.generate(PROMPTS, max_tokens=24, gamma=3, **ask)
        assert [out.token_ids for out in together] == want
        drafted += sum(out.stats.num_drafted for out in together)
        out = llm.generate(PROMPTS[0], max_tokens=24, gamma=5, **ask)
        assert out.token_ids == want[0]
        assert out.settings.drafter == name
    assert drafted > 0


@pytest.mark.parametrize("before", ["", "suffix+"])
@pytest.mark.parametrize("kind", HEADS)
def test_heads_on_transformers(kind: str, before: str, tmp_path: Path) -> None:
    """Random heads, alone and after suffixes: token for token plain decoding, whatever they guess."""
    test_on_transformers(before + head_for(kind, tiny(drafter="none").model, tmp_path), {})


@pytest.mark.parametrize("before", ["", "suffix+"])
@pytest.mark.parametrize("kind", HEADS)
def test_heads_in_trees_on_transformers(kind: str, before: str, tmp_path: Path) -> None:
    """Greedy, and with a seed: plain decoding's tokens, whatever tree is drafted; trees of a fixed shape too."""
    plain = tiny(drafter="none")
    llm = load(before + head_for(kind, plain.model, tmp_path))
    for tree in ("3x2", Shape.of_paths([[0], [1], [0, 0], [0, 1], [0, 0, 0]])):
        for ask in ({"temperature": 0}, {"temperature": 1.0, "seed": 3}):
            want = [out.token_ids for out in plain.generate(PROMPTS, max_tokens=20, **ask)]
            together = llm.generate(PROMPTS, max_tokens=20, tree=tree, **ask)
            assert [out.token_ids for out in together] == want
            assert sum(out.stats.num_drafted for out in together) > 20


def test_smollm2_natively_with_every_drafter(smollm2_path: Path, tmp_path: Path) -> None:
    """The real model: greedy and sampled, the plain tokens bit for bit; its own first layers, and a stranger's vocabulary."""
    plain = headstart.load("smollm2", drafter="none", threads=1, offline=True)
    prompt = "Write a short story about a lighthouse keeper."
    asks = ({"temperature": 0, "max_tokens": 40}, {"temperature": 1.0, "seed": 7, "max_tokens": 24, "top_p": 0.95})
    want = [plain.generate(prompt, **ask).token_ids for ask in asks]
    tiny_target = tiny(drafter="none")
    target = drafting.Held(model=plain.model, tokenizer=plain.tokenizer)
    stranger = drafting.Held(model=tiny_target.model, tokenizer=Tokenizer.from_folder(folder("target")))
    for name, options, least in (
        ("suffix", {}, 0.0),
        ("suffix+skip:20", {}, 0.0),
        ("skip:29", {"draft_vocab": 16_384}, 0.0),
        ("model:self", {"draft_vocab": 8_192}, 0.5),
        ("cross:self", {}, 0.85),
        ("cross:stranger", {}, 0.0),
        ("eagle:smollm2", {}, 0.2),
        *((before + head_for(kind, plain.model, tmp_path), {}, 0.0) for kind in HEADS for before in ("", "suffix+")),
    ):
        wish, others = drafting.parse(name, **options), {"self": target, "stranger": stranger}
        heads = {part.head: find_head(part.head, True, print) for part in wish.parts if part.head}
        drafter = drafting.build(wish, target, others, heads)
        for ask, tokens in zip(asks, want, strict=True):
            out = plain.with_drafter(drafter).generate(prompt, gamma=4, **ask)
            assert out.token_ids == tokens, name
            assert ask["temperature"] > 0 or (out.stats.acceptance_rate or 0) >= least, name
