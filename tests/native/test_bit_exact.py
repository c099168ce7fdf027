"""A row of the native engine is the same, bit for bit, however it came about.

Every comparison is of all bits, against rows scored one token a pass by one thread from an empty cache. Over every architecture
and weight type: many tokens a pass, beside other sequences, trees and kept paths, rewinds and forks, prefill in any chunks; over
thread counts and instruction sets.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headstart import _core
from headstart.interfaces import Ask
from headstart.models.native import NativeModel
from tests.native.conftest import Loaded
from tests.native.random_gguf import ARCHITECTURES, TYPES, VOCAB

PARENTS = (-1, -1, 0, 0, 1, 2, 3, 5)  # two children of the end, branches of different depths
PATHS = ((0, 2, 5, 7), (0, 3, 6), (1, 4), (0,))

over_architectures = pytest.mark.parametrize("architecture", ARCHITECTURES)
over_types = pytest.mark.parametrize("kind", TYPES)


def tokens_for(count: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    """`count` random token ids."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, vocab, count)]


def score(model: NativeModel, cache: Any, tokens: Sequence[int], **asked: Any) -> NDArray[Any]:
    """Logits of one ask."""
    return model.score([Ask(cache=cache, tokens=tokens, **asked)])[0].logits


def filled(model: NativeModel, tokens: Sequence[int]) -> Any:
    """A cache that holds `tokens`."""
    cache = model.open()
    if tokens:
        score(model, cache, tokens, num_logits=0)
    return cache


def one_by_one(model: NativeModel, tokens: Sequence[int]) -> NDArray[Any]:
    """[tokens, vocab]: a pass a token."""
    cache = model.open()
    return np.concatenate([score(model, cache, [token]) for token in tokens])


def assert_same_bits(got: NDArray[Any], expected: NDArray[Any]) -> None:
    """Equal in every bit, and numbers at all."""
    assert np.isfinite(got).all()
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


def cuts(length: int, seed: int) -> Iterator[tuple[int, int]]:
    """[0, length) in random pieces."""
    rng, start = np.random.default_rng(seed), 0
    while start < length:
        end = min(length, start + int(rng.integers(1, 12)))
        yield start, end
        start = end


# ---- over every architecture and type ------------------------------------------------------------------------------------------


@over_architectures
@over_types
def test_many_tokens_in_one_pass_are_one_at_a_time(loaded: Loaded, architecture: str, kind: str) -> None:
    """From any starting length, in any pieces, beyond the window of 8."""
    model, tokens = loaded(architecture, kind), tokens_for(40)
    expected = one_by_one(loaded(architecture, kind, threads=1), tokens)
    assert np.ptp(expected) > 1.0  # rows that say something
    for start in (0, 1, 13, 32):
        cache = filled(model, tokens[:start])
        assert_same_bits(score(model, cache, tokens[start:]), expected[start:])
    for seed in range(3):
        cache = model.open()
        rows = [score(model, cache, tokens[a:b]) for a, b in cuts(40, seed)]
        assert_same_bits(np.concatenate(rows), expected)


@over_architectures
@over_types
def test_alone_or_among_others(loaded: Loaded, architecture: str, kind: str) -> None:
    """Sequences of different lengths in one pass, one of them a tree, with some of the logits wanted: each as if alone."""
    model = loaded(architecture, kind)
    held, asked, wanted = (0, 21, 3, 0, 10), (5, 1, 4, 1, 8), (None, 1, 0, 1, 3)
    texts = [tokens_for(a + b, seed) for seed, (a, b) in enumerate(zip(held, asked, strict=True))]
    caches = [filled(model, text[:a]) for text, a in zip(texts, held, strict=True)]
    tree = filled(model, tokens_for(9, 7))
    asks = [Ask(cache=c, tokens=t[a:], num_logits=n) for c, t, a, n in zip(caches, texts, held, wanted, strict=True)]
    asks.insert(2, Ask(cache=tree, tokens=tokens_for(len(PARENTS), 8), parents=PARENTS))
    answers = model.score(asks)
    beside = answers.pop(2)
    for answer, text, b, n in zip(answers, texts, asked, wanted, strict=True):
        count = b if n is None else n
        assert_same_bits(answer.logits, one_by_one(model, text)[len(text) - count :])
    for path in PATHS:
        chain = tokens_for(9, 7) + [tokens_for(len(PARENTS), 8)[index] for index in path]
        assert_same_bits(beside.logits[list(path)], one_by_one(model, chain)[9:])
    for cache, text in zip(caches, texts, strict=True):
        assert_same_bits(score(model, cache, [1, 2]), one_by_one(model, [*text, 1, 2])[-2:])


@over_architectures
@over_types
def test_a_tree_a_kept_path_and_a_chain(loaded: Loaded, architecture: str, kind: str) -> None:
    """Each path of a tree is its chain, before and after it is kept, wherever the cache ends within its tiles of sixteen."""
    model, nodes, after = loaded(architecture, kind), tokens_for(len(PARENTS), 3), tokens_for(4, 5)
    for start in (0, 6, 15, 27):
        prefix = tokens_for(start, 1)
        cache = filled(model, prefix)
        rows = score(model, cache, nodes, parents=PARENTS)
        for path in PATHS:
            kept = cache.fork()
            kept.keep(path)
            chain = one_by_one(model, prefix + [nodes[index] for index in path] + after)
            assert_same_bits(rows[list(path)], chain[start : start + len(path)])
            assert_same_bits(score(model, kept, after), chain[-len(after) :])
            assert kept.length == start + len(path) + len(after)


@over_architectures
@pytest.mark.parametrize("kind", ["F16", "Q4_1", "Q6_K"])
def test_any_number_of_threads(loaded: Loaded, architecture: str, kind: str) -> None:
    """1 to 7 threads, more than there are cores or tiles for."""
    tokens = tokens_for(40)
    expected = one_by_one(loaded(architecture, kind, threads=1), tokens)
    for threads in (1, 2, 3, 4, 7):
        model = loaded(architecture, kind, threads=threads)
        assert model.threads == threads
        cache = filled(model, tokens[:17])
        assert_same_bits(score(model, cache, tokens[17:25]), expected[17:25])
        assert_same_bits(score(model, cache, tokens[25:26]), expected[25:26])


@over_architectures
@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q4_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"])
def test_every_instruction_set(loaded: Loaded, architecture: str, kind: str) -> None:
    """The portable code's rows on every instruction set there is."""
    tokens = tokens_for(20)
    expected = one_by_one(loaded(architecture, kind, instruction_set="portable"), tokens)
    for name in _core.instruction_sets():
        model = loaded(architecture, kind, instruction_set=name)
        assert model.instruction_set == name
        assert_same_bits(score(model, model.open(), tokens), expected)


@over_architectures
@pytest.mark.parametrize("kind", ["F16", "Q4_K"])
def test_prefill_in_any_chunks(loaded: Loaded, architecture: str, kind: str) -> None:
    """Prompts longer than one pass takes (256 rows), two at a time, cut anywhere, give the row of one token a pass."""
    tokens, other = tokens_for(600), tokens_for(290, 1)
    model = loaded(architecture, kind, context=700)
    expected, beside = one_by_one(model, tokens)[-3:], one_by_one(model, other)[-2:]
    answers = model.score(
        [Ask(cache=model.open(), tokens=other, num_logits=2), Ask(cache=model.open(), tokens=tokens, num_logits=3)]
    )
    assert_same_bits(answers[0].logits, beside)
    assert_same_bits(answers[1].logits, expected)
    for pieces in ((256, 512), (1, 300), (17, 18, 255, 511, 512, 513), (599,)):
        cache = model.open()
        for a, b in zip((0, *pieces), (*pieces, 600), strict=True):
            row = score(model, cache, tokens[a:b], num_logits=1)
        assert_same_bits(row, expected[-1:])


@over_architectures
def test_a_tree_cut_by_the_end_of_a_pass(loaded: Loaded, architecture: str) -> None:
    """A tree that lies across two passes, behind a long prompt of another sequence, is the same tree."""
    model, prompt, nodes = loaded(architecture, "Q4_1", context=700), tokens_for(251, 4), tokens_for(len(PARENTS), 3)
    cache = filled(model, tokens_for(20, 6))
    answers = model.score([Ask(cache=model.open(), tokens=prompt, num_logits=0), Ask(cache=cache, tokens=nodes, parents=PARENTS)])
    for path in PATHS:
        chain = tokens_for(20, 6) + [nodes[index] for index in path]
        assert_same_bits(answers[1].logits[list(path)], one_by_one(model, chain)[20:])


# ---- whatever happens to caches ------------------------------------------------------------------------------------------------


class Walk:
    """Caches of one model under random verbs; every row that comes back is compared with its text scored one by one."""

    def __init__(self, model: NativeModel, single: NativeModel) -> None:
        self.model, self.single = model, single
        self.known: dict[tuple[int, ...], NDArray[Any]] = {}
        self.live: list[tuple[Any, list[int]]] = [(model.open(), [])]

    def expected(self, text: Sequence[int]) -> NDArray[Any]:
        key = tuple(text)
        if key not in self.known:
            rows = one_by_one(self.single, text)
            self.known |= {key[: i + 1]: rows[i] for i in range(len(key))}
        return self.known[key]

    def step(self, data: st.DataObject) -> None:
        verb = data.draw(st.sampled_from(["chains", "tree", "rewind", "fork"]), label="verb")
        index = data.draw(st.integers(0, len(self.live) - 1), label="cache")
        cache, text = self.live[index]
        if verb == "chains":
            chosen = data.draw(st.lists(st.integers(0, len(self.live) - 1), min_size=1, unique=True), label="caches")
            news = [data.draw(_TOKENS, label="tokens") for _ in chosen]
            asks = [Ask(cache=self.live[i][0], tokens=new) for i, new in zip(chosen, news, strict=True)]
            for i, new, answer in zip(chosen, news, self.model.score(asks), strict=True):
                for place, row in enumerate(answer.logits):
                    assert_same_bits(row, self.expected(self.live[i][1] + new[: place + 1]))
                self.live[i] = (self.live[i][0], self.live[i][1] + new)
        elif verb == "tree":
            new = data.draw(_TOKENS, label="tokens")
            parents = [data.draw(st.integers(-1, place - 1), label="parent") for place in range(len(new))]
            rows = score(self.model, cache, new, parents=parents)
            paths = [_path(parents, place) for place in range(len(new))]
            for row, path in zip(rows, paths, strict=True):
                assert_same_bits(row, self.expected(text + [new[node] for node in path]))
            path = data.draw(st.sampled_from([*paths, []]), label="path")
            cache.keep(path)
            self.live[index] = (cache, text + [new[node] for node in path])
        elif verb == "rewind":
            length = data.draw(st.integers(0, len(text)), label="length")
            cache.rewind(length)
            self.live[index] = (cache, text[:length])
        elif len(self.live) < 4:
            self.live.append((cache.fork(), list(text)))
        for held, tokens in self.live:
            assert held.length == held.core.length == len(tokens)


_TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=9)  # few tokens, so that texts meet again


def _path(parents: Sequence[int], node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path


@over_architectures
@pytest.mark.parametrize("kind", ["F32", "Q4_K"])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_walk(loaded: Loaded, architecture: str, kind: str, data: st.DataObject) -> None:
    """Chains for several caches at once, trees, rewinds and forks in any order."""
    walk = Walk(loaded(architecture, kind, context=400), loaded(architecture, kind, threads=1, context=400))
    for _ in range(data.draw(st.integers(1, 12), label="steps")):
        walk.step(data)


def test_a_tree_can_be_rewound_into(loaded: Loaded) -> None:
    """What is left of a cut tree is a tree to choose from, or a chain to go on from."""
    model, nodes = loaded("llama", "F32"), tokens_for(len(PARENTS), 3)
    cache = filled(model, [1, 2])
    score(model, cache, nodes, parents=PARENTS)
    cache.rewind(2 + 6)
    with pytest.raises(ValueError, match="tree"):
        score(model, cache, [5])
    fork = cache.fork()
    fork.keep((0, 2, 5))
    assert_same_bits(score(model, fork, [5]), one_by_one(model, [1, 2, nodes[0], nodes[2], nodes[5], 5])[-1:])
    cache.rewind(2 + 1)
    assert_same_bits(score(model, cache, [5]), one_by_one(model, [1, 2, nodes[0], 5])[-1:])


def test_two_threads_may_score_at_once(loaded: Loaded) -> None:
    """Passes, forks and rewinds from several Python threads take turns; nobody's rows change."""
    model = loaded("qwen3", "Q4_1")
    texts = [tokens_for(30, seed) for seed in range(4)]
    expected = [one_by_one(model, text) for text in texts]
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            for _ in range(3):
                cache = model.open()
                for a, b in cuts(30, index):
                    assert_same_bits(score(model, cache, texts[index][a:b]), expected[index][a:b])
                    cache = cache.fork()
                    cache.rewind(a)
                    assert_same_bits(score(model, cache, texts[index][a:b]), expected[index][a:b])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


# ---- a real model --------------------------------------------------------------------------------------------------------------


def test_smollm2(smollm2_path: Any) -> None:
    """Pieces, a tree with a kept path, and other thread counts on SmolLM2-135M."""
    text = [1, 9690, 198, 2683, 359, 253, 5356, 5646, *tokens_for(40, vocab=49152)]
    expected = one_by_one(NativeModel.load(smollm2_path, threads=1), text)
    for threads in (1, 2, 3):
        model = NativeModel.load(smollm2_path, threads=threads)
        for seed in range(2):
            cache = model.open()
            assert_same_bits(np.concatenate([score(model, cache, text[a:b]) for a, b in cuts(len(text), seed)]), expected)
        cache = filled(model, text[:30])
        rows = score(model, cache, [7, text[30], 8, text[31], text[31], 9], parents=[-1, -1, 0, 1, 2, 3])
        assert_same_bits(rows[[1, 3]], expected[30:32])
        cache.keep([1, 3])
        assert_same_bits(score(model, cache, text[32:]), expected[32:])


# ---- twins ---------------------------------------------------------------------------------------------------------------------


def test_twin_that_keeps_the_first_nodes_is_caught(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cutting a tree to length instead of gathering its path changes rows."""
    kind = type(loaded("llama", "F32").open())
    keep = kind.keep

    def wrong(cache: Any, path: Sequence[int]) -> None:
        tail = cache.tail.kept(path)
        keep(cache, _path(PARENTS, 7)[: len(path)] if len(path) < 4 else path)
        cache.tail = tail

    monkeypatch.setattr(kind, "keep", wrong)
    with pytest.raises((AssertionError, ValueError)):
        test_a_tree_a_kept_path_and_a_chain(loaded, "llama", "F32")


def test_twin_with_another_order_of_summation_is_caught() -> None:
    """The same text in transformers, whole and token by token, differs in bits: the comparison can tell."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    weight = torch.from_numpy(rng.standard_normal((256, 256)).astype(np.float32))
    x = torch.from_numpy(rng.standard_normal((40, 256)).astype(np.float32))
    alone = torch.stack([sum(w * v for w, v in zip(weight.T, row, strict=True)) for row in x]).numpy()
    with pytest.raises(AssertionError):
        assert_same_bits((x @ weight.T).numpy(), alone)
