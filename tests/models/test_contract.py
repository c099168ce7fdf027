"""What every model must do, whoever runs it. A new model is one line in `conftest.models`.

Each test compares with rows scored one token at a time from an empty cache (`chain_rows`), which in turn are compared with
an independent computation in `test_table`, `test_transformers` and `native/test_reference`. Tables are held to equality,
networks to 1e-4; `native/test_bit_exact` holds the native engine to equality.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headstart.interfaces import Ask
from tests.models.conftest import NATIVES, NETWORKS

NAMES = ("table0", "table1", "table2", *NETWORKS, *NATIVES)

# A tree of seven nodes: two children of the end, three below the first, one deeper, one below the second.
PARENTS = (-1, -1, 0, 0, 1, 2, 3)
PATHS = ((0, 2, 5), (0, 3, 6), (1, 4), (0,), ())


@pytest.fixture(params=NAMES)
def model(request: pytest.FixtureRequest, models: dict[str, Any]) -> Any:
    """Each model in turn."""
    return models[request.param]


def tokens_for(model: Any, count: int, seed: int = 0) -> list[int]:
    """`count` random token ids."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, model.vocab_size, count)]


def score(model: Any, cache: Any, tokens: Sequence[int], **asked: Any) -> NDArray[Any]:
    """Logits of one ask."""
    return model.score([Ask(cache=cache, tokens=tokens, **asked)])[0].logits


def filled(model: Any, tokens: Sequence[int]) -> Any:
    """A cache that holds `tokens`."""
    cache = model.open()
    if tokens:
        score(model, cache, tokens, num_logits=0)
    return cache


def chain_rows(model: Any, tokens: Sequence[int]) -> NDArray[Any]:
    """[tokens, vocab]: rows scored one at a time."""
    cache = model.open()
    return np.concatenate([score(model, cache, [token]) for token in tokens])


def assert_same(got: NDArray[Any], expected: NDArray[Any]) -> None:
    """Equal for tables (float64), to 1e-4 for networks (float32), whose order of summation depends on the pass."""
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    if got.dtype == np.float64:
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, atol=1e-4, rtol=1e-4)


def test_states_its_size(model: Any) -> None:
    """A row is as wide as `vocab_size`, and a new cache is empty."""
    cache = model.open()
    assert cache.length == 0
    assert score(model, cache, [0]).shape == (1, model.vocab_size)
    assert cache.length == 1
    assert model.context_limit == 64


def test_many_tokens_in_one_pass_equal_one_at_a_time(model: Any) -> None:
    """Scoring k tokens gives the rows of k passes, from any starting length, beyond any window."""
    tokens = tokens_for(model, 30)
    expected = chain_rows(model, tokens)
    for start in (0, 1, 7, 20):
        cache = filled(model, tokens[:start])
        assert_same(score(model, cache, tokens[start:]), expected[start:])
        assert cache.length == 30


def test_only_wanted_logits_come_back(model: Any) -> None:
    """`num_logits` gives the last so many rows, none at all for 0; the tokens count either way."""
    tokens = tokens_for(model, 9)
    expected = chain_rows(model, tokens)
    for wanted in (0, 1, 4, 9, None):
        cache = model.open()
        got = score(model, cache, tokens, num_logits=wanted)
        assert_same(got, expected[9 - (9 if wanted is None else wanted) :])
        assert cache.length == 9


def test_rewind_then_score_equals_fresh(model: Any) -> None:
    """After a rewind nothing of the forgotten tokens is left, however often it happens and however far it goes."""
    tokens, other = tokens_for(model, 24), tokens_for(model, 24, seed=1)
    expected = chain_rows(model, tokens)
    cache = model.open()
    for length in (0, 1, 5, 12, 23):
        score(model, cache, tokens[cache.length : length] + other[:1])
        score(model, cache, other[1:6])
        cache.rewind(length)
        assert cache.length == length
        assert_same(score(model, cache, tokens[length:]), expected[length:])
        cache.rewind(length)
    cache.rewind(0)
    assert_same(score(model, cache, tokens), expected)


def test_rewind_beyond_what_is_held_is_an_error(model: Any) -> None:
    """A rewind can only shorten."""
    cache = filled(model, tokens_for(model, 4))
    for length in (5, -1):
        with pytest.raises(ValueError, match="`length`"):
            cache.rewind(length)
    cache.rewind(4)
    assert cache.length == 4


def test_sequences_in_one_pass_equal_each_alone(model: Any) -> None:
    """Sequences of different lengths, asks of different sizes, one pass: each as if it were alone."""
    held, asked = (0, 21, 3, 0, 10), (5, 1, 4, 1, 7)
    texts = [tokens_for(model, a + b, seed) for seed, (a, b) in enumerate(zip(held, asked, strict=True))]
    caches = [filled(model, text[:a]) for text, a in zip(texts, held, strict=True)]
    wanted = (None, 1, 0, 1, 3)
    asks = [
        Ask(cache=cache, tokens=text[a:], num_logits=n) for cache, text, a, n in zip(caches, texts, held, wanted, strict=True)
    ]
    answers = model.score(asks)
    for answer, cache, text, b, n in zip(answers, caches, texts, asked, wanted, strict=True):
        assert cache.length == len(text)
        assert_same(answer.logits, chain_rows(model, text)[len(text) - (b if n is None else n) :])
    for cache, text in zip(caches, texts, strict=True):  # and what they remember is their own, too
        assert_same(score(model, cache, [1, 2]), chain_rows(model, [*text, 1, 2])[-2:])


def test_no_asks_no_answers(model: Any) -> None:
    """An empty pass is allowed."""
    assert model.score([]) == []


@pytest.mark.parametrize("start", [0, 6, 15])
def test_each_path_of_a_tree_equals_its_chain(model: Any, start: int) -> None:
    """A node sees the prefix and its ancestors, at its own depth, and nothing else: alone or beside other sequences."""
    prefix, nodes, other = tokens_for(model, start), tokens_for(model, len(PARENTS), 3), tokens_for(model, 4, 4)
    cache, beside = filled(model, prefix), model.open()
    rows, _ = (
        scores.logits
        for scores in model.score([Ask(cache=cache, tokens=nodes, parents=PARENTS), Ask(cache=beside, tokens=other)])
    )
    assert cache.length == start + len(PARENTS)
    for path in filter(None, PATHS):
        chain = chain_rows(model, prefix + [nodes[index] for index in path])
        assert_same(rows[list(path)], chain[start:])


@pytest.mark.parametrize("path", PATHS)
def test_keep_makes_a_chain(model: Any, path: tuple[int, ...]) -> None:
    """After keep(path) the cache is the one that scored the path as a chain."""
    prefix, nodes, after = tokens_for(model, 10), tokens_for(model, len(PARENTS), 3), tokens_for(model, 3, 5)
    cache = filled(model, prefix)
    score(model, cache, nodes, parents=PARENTS)
    cache.keep(path)
    assert cache.length == 10 + len(path)
    chain = prefix + [nodes[index] for index in path] + after
    assert_same(score(model, cache, after), chain_rows(model, chain)[-3:])


def test_keep_of_a_chain_is_a_rewind(model: Any) -> None:
    """On a chain, the paths are its beginnings."""
    tokens = tokens_for(model, 12)
    cache = filled(model, tokens[:6])
    score(model, cache, tokens[6:10])
    cache.keep([0, 1])
    assert cache.length == 8
    assert_same(score(model, cache, tokens[8:]), chain_rows(model, tokens)[8:])


@pytest.mark.parametrize("path", [(2,), (0, 1), (0, 5), (0, 2, 2), (2, 0), (0, 2, 5, 7), (-1,)])
def test_keep_refuses_what_is_no_path(model: Any, path: tuple[int, ...]) -> None:
    """Indices that skip a parent, repeat, fall back or lie outside are refused, and nothing changes."""
    cache = filled(model, tokens_for(model, 3))
    score(model, cache, tokens_for(model, len(PARENTS)), parents=PARENTS)
    with pytest.raises(ValueError, match="`path`"):
        cache.keep(path)
    assert cache.length == 3 + len(PARENTS)
    cache.keep((0, 2))
    assert cache.length == 5


def test_a_tree_must_be_resolved_before_the_next_score(model: Any) -> None:
    """What comes after a tree is ambiguous until keep or rewind has chosen."""
    cache = filled(model, [1])
    score(model, cache, tokens_for(model, len(PARENTS)), parents=PARENTS)
    with pytest.raises(ValueError, match="tree"):
        score(model, cache, [1])
    cache.rewind(1)
    assert_same(score(model, cache, [2]), chain_rows(model, [1, 2])[1:])


def test_a_fork_is_independent(model: Any) -> None:
    """Scoring, rewinding or keeping on one of two forks does not touch the other; a fork of a tree can still choose."""
    prefix, left, right = tokens_for(model, 12), tokens_for(model, 6, 1), tokens_for(model, 9, 2)
    cache = filled(model, prefix)
    score(model, cache, left[:2])
    fork = cache.fork()
    assert fork.length == cache.length == 14
    fork.rewind(12)
    score(model, fork, right)
    assert_same(score(model, cache, left[2:]), chain_rows(model, prefix + left)[14:])
    assert_same(score(model, fork, [1]), chain_rows(model, [*prefix, *right, 1])[-1:])

    tree = filled(model, prefix)
    score(model, tree, right[:7], parents=PARENTS)
    other = tree.fork()
    tree.keep((0, 2))
    other.keep((1, 4))
    assert_same(score(model, tree, [3]), chain_rows(model, [*prefix, right[0], right[2], 3])[-1:])
    assert_same(score(model, other, [3]), chain_rows(model, [*prefix, right[1], right[4], 3])[-1:])


def test_fork_of_an_empty_cache(model: Any) -> None:
    """Nothing forks into nothing."""
    fork = model.open().fork()
    assert fork.length == 0
    assert_same(score(model, fork, [1, 2]), chain_rows(model, [1, 2]))


def test_the_context_limit_is_kept(model: Any) -> None:
    """Exactly `context_limit` tokens fit; one more is an error that changes nothing, for anyone in the pass."""
    cache, other = filled(model, tokens_for(model, 62)), filled(model, [1])
    with pytest.raises(ValueError, match="context_limit"):
        model.score([Ask(cache=other, tokens=[1]), Ask(cache=cache, tokens=[0, 1, 2])])
    assert (cache.length, other.length) == (62, 1)
    assert score(model, cache, [0, 1]).shape == (2, model.vocab_size)
    assert cache.length == 64


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"tokens": []}, "`tokens`"),
        ({"tokens": [-1]}, "`tokens`"),
        ({"tokens": [1_000_000]}, "`tokens`"),
        ({"tokens": [1], "num_logits": 2}, "`num_logits`"),
        ({"tokens": [1], "num_logits": -1}, "`num_logits`"),
        ({"tokens": [1, 2], "parents": [-1]}, "`parents`"),
        ({"tokens": [1, 2], "parents": [-1, 1]}, "`parents`"),
        ({"tokens": [1, 2], "parents": [-2, 0]}, "`parents`"),
    ],
)
def test_impossible_asks_are_refused_whole(model: Any, asked: dict[str, Any], named: str) -> None:
    """The message names what is wrong, and no sequence of the call has moved."""
    good, bad = filled(model, [1, 2]), filled(model, [1])
    with pytest.raises(ValueError, match=named):
        model.score([Ask(cache=good, tokens=[1]), Ask(cache=bad, **asked)])
    assert (good.length, bad.length) == (2, 1)


def test_a_cache_is_scored_once_and_by_its_own_model(model: Any, models: dict[str, Any]) -> None:
    """One cache twice in a call, or another model's cache, cannot be answered."""
    cache = model.open()
    with pytest.raises(ValueError, match="twice"):
        model.score([Ask(cache=cache, tokens=[1]), Ask(cache=cache, tokens=[2])])
    for other in models.values():
        if other is not model:
            with pytest.raises(ValueError, match="must come from open"):
                score(model, other.open(), [1])


# Twins: caches that are wrong in known ways. If the claim above does not fail on them, it says nothing.


def test_twin_that_rewinds_one_too_few_is_caught(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeping one rejected token must not pass the rewind test."""
    kind = type(model.open())
    rewind = kind.rewind
    monkeypatch.setattr(kind, "rewind", lambda cache, length: rewind(cache, min(length + 1, cache.length)))
    with pytest.raises(AssertionError):
        test_rewind_then_score_equals_fresh(model)


def test_twin_that_forgets_lengths_only_in_name_is_caught(models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that says the right length but keeps writing one slot too far must be caught by its rows."""
    kind = type(models["llama"].open())
    extend = kind.extend
    monkeypatch.setattr(
        kind, "extend", lambda cache, layer, start, *new: extend(cache, layer, start + (layer == 1 and start > 0), *new)
    )
    with pytest.raises(AssertionError):
        test_many_tokens_in_one_pass_equal_one_at_a_time(models["llama"])


def test_twin_that_keeps_the_first_nodes_of_a_tree_is_caught(models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Cutting a tree to length instead of gathering its path must not pass the keep test."""
    model = models["qwen3"]
    monkeypatch.setattr(type(model.open()), "_gather", lambda cache, start, path: None)
    with pytest.raises(AssertionError):
        test_keep_makes_a_chain(model, (0, 3, 6))


def test_twin_that_ignores_the_window_is_caught(models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys older than the window must not be read when several tokens are scored at once."""
    from headstart.models import attention

    see = attention._see
    monkeypatch.setattr(attention, "_see", lambda piece, window, query: see(piece, None if piece.size > 1 else window, query))
    for name in ("gemma3", "mistral"):
        with pytest.raises(AssertionError):
            test_many_tokens_in_one_pass_equal_one_at_a_time(models[name])


@pytest.fixture(params=(*NETWORKS, *NATIVES))
def network(request: pytest.FixtureRequest, models: dict[str, Any]) -> Any:
    """Each model that has hidden states."""
    return models[request.param]


def features(model: Any, cache: Any, tokens: Sequence[int], layers: Sequence[int], **asked: Any) -> NDArray[Any]:
    """Hidden states of one ask."""
    return model.score([Ask(cache=cache, tokens=tokens, feature_layers=layers, **asked)])[0].features


def test_features_do_not_depend_on_the_pass(network: Any) -> None:
    """Hidden states of k tokens in one pass, logits wanted or not, equal those of k passes; layers come in the order asked."""
    tokens, cache = tokens_for(network, 12), network.open()
    layers = (0, 2, network.num_layers)
    single = np.concatenate([features(network, cache, [token], layers) for token in tokens])
    assert single.shape == (12, 3 * network.embeddings([0]).shape[1])
    for num_logits in (None, 0):
        assert_same(features(network, network.open(), tokens, layers, num_logits=num_logits), single)
    parts = np.split(single, 3, axis=1)
    assert_same(features(network, network.open(), tokens, layers[::-1]), np.concatenate(parts[::-1], axis=1))


def test_first_and_last_features_are_what_they_are_called(network: Any) -> None:
    """The input to the first layer is the embedding; what the last norm gives, times the head's rows, is the logits."""
    tokens, vocabulary = tokens_for(network, 6), np.arange(network.vocab_size)
    assert_same(features(network, network.open(), tokens, [0]), network.embeddings(tokens))
    (scored,) = network.score([Ask(cache=network.open(), tokens=tokens, feature_layers=[network.num_layers])])
    logits = scored.features @ network.head_rows(vocabulary).T
    if np.abs(scored.logits).max() <= 5.0:  # gemma2 bends its logits; its argument is what the head gives
        logits = 5.0 * np.tanh(logits / 5.0) if np.abs(logits).max() > 5.0 else logits
    scale = np.abs(logits).max()
    np.testing.assert_allclose(scored.logits / scale, logits / scale, atol=2e-2)  # the native engine rounds to 8 bits


def test_features_of_a_batch_are_each_sequence_s_own(network: Any) -> None:
    """Asks that want different layers, or none, share a pass."""
    texts = [tokens_for(network, count, seed=count) for count in (3, 5, 4)]
    wanted: tuple[tuple[int, ...], ...] = ((1,), (), (2, 1))
    asks = [Ask(cache=network.open(), tokens=text, feature_layers=layers) for text, layers in zip(texts, wanted, strict=True)]
    answers = network.score(asks)
    assert answers[1].features is None
    for place in (0, 2):
        assert_same(answers[place].features, features(network, network.open(), texts[place], wanted[place]))


def test_a_layer_there_is_not_is_refused(network: Any) -> None:
    """And the cache is as it was."""
    cache = network.open()
    for layer in (-1, network.num_layers + 1):
        with pytest.raises(ValueError, match="`feature_layers`"):
            features(network, cache, [1, 2], [layer])
    assert cache.length == 0
