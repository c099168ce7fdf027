"""Suffix decoding against its definition, by counting substrings; the automaton under it; the memory and its bound."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.decode import Decoder
from headstart.drafters import SuffixDrafter
from headstart.drafters.automaton import Automaton, Place, Writer
from headstart.draws import KeyedDraws, StreamDraws
from headstart.errors import OptionError
from headstart.records import Draft
from headstart.shapes import Shape
from tests.decode.loops import finished, random_model, request
from tests.drafters.test_contract import context

VOCAB = 4
TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def followers(texts: Sequence[Sequence[int]], pattern: Sequence[int]) -> tuple[Counter[int], dict[int, int]]:
    """How often each token followed `pattern`, and when it did last, by looking everywhere."""
    counts: Counter[int] = Counter()
    latest, size, moment = {}, len(pattern), 0
    for text in texts:
        for end in range(size, len(text)):
            moment += 1
            if list(text[end - size : end]) == list(pattern):
                counts[text[end]] += 1
                latest[text[end]] = moment
    return counts, latest


def proposal(texts, tokens, budget, factor=1.0, offset=0.0, least=0.1, deepest=32):
    """(score, length of the match, tokens): every suffix of `tokens`, the longest first, looked up in `texts`."""
    best = (0.0, 0, [])
    for length in range(min(deepest, len(tokens)), 0, -1):
        draft, prob, score = [], 1.0, 0.0
        while len(draft) < min(budget, math.floor(length * factor + offset)):
            pattern = [*tokens[len(tokens) - length :], *draft][-deepest:]
            counts, latest = followers(texts, pattern)
            if not counts:
                break
            token = max(counts, key=lambda t: (counts[t], latest[t]))
            prob *= counts[token] / counts.total()
            if prob < least:
                break
            draft.append(token)
            score += prob
        if score > best[0]:
            best = (score, length, draft)
    return best


def draft_of(tokens: list[int], budget: int = 6, **options) -> list[int]:
    drafter = SuffixDrafter(VOCAB, **options)
    (draft,) = drafter.propose(drafter.open([context(tokens)]), [context(tokens)], [budget], [StreamDraws(0)])
    return list(draft.tokens)


@settings(max_examples=400, deadline=None)
@given(
    tokens=TEXT,
    budget=st.integers(0, 7),
    factor=st.sampled_from([0.0, 0.5, 1.0, 2.5]),
    offset=st.sampled_from([0.0, 1.0, 3.5]),
    least=st.sampled_from([0.1, 0.4, 1.0]),
    deepest=st.sampled_from([1, 2, 5, 32]),
)
def test_it_is_the_best_proposal_of_any_suffix(tokens, budget, factor, offset, least, deepest) -> None:
    """Any text and any options: what the definition says."""
    want = proposal([tokens], tokens, budget, factor, offset, least, deepest)[2]
    assert draft_of(tokens, budget, factor=factor, offset=offset, least=least, max_match=deepest) == want


def grown(tokens, shape, least=0.1, deepest=32):
    """(score, length of the match, (token, parent) by node): the best tree any suffix of `tokens` proposes, by its definition."""
    best = (0.0, 0, [])
    for length in range(min(deepest, len(tokens)), 0, -1):
        score, nodes, paths, widths = 0.0, [], [[]], Counter()
        offers: list = []
        while True:
            path, parent = paths[-1], len(nodes) - 1
            counts, latest = followers([tokens], [*tokens[len(tokens) - length :], *path][-deepest:])
            first = max(counts, key=lambda t: (counts[t], latest[t]), default=None)
            above = 1.0 if parent < 0 else nodes[parent][2]
            for token in counts if len(path) < shape.depth else ():
                share = above * counts[token] / counts.total()
                if share >= least:
                    offers.append((-share, len(path), token != first, token, parent))
            while offers:
                offer = min(offers)
                offers.remove(offer)
                if widths[offer[1]] < shape.width:
                    break
            else:
                break
            if len(nodes) == min(shape.nodes, length):
                break
            widths[offer[1]] += 1
            nodes.append((offer[3], offer[4], -offer[0]))
            paths.append([*paths[offer[4] + 1], offer[3]])
            score -= offer[0]
        if score > best[0] + 1e-12:
            best = (score, length, [node[:2] for node in nodes])
    return best


def nodes_of(draft: Draft) -> list[tuple[int, int]]:
    """Token and parent by node; a chain is the tree in which each hangs from the one before."""
    parents = range(-1, len(draft) - 1) if draft.parents is None else draft.parents
    return list(zip(draft.tokens, parents, strict=True))


@settings(max_examples=300, deadline=None)
@given(
    tokens=TEXT,
    width=st.integers(2, 3),
    depth=st.integers(1, 4),
    nodes=st.integers(1, 7),
    least=st.sampled_from([0.1, 0.4]),
    deepest=st.sampled_from([2, 5, 32]),
)
def test_trees_are_the_likeliest_that_followed(tokens, width, depth, nodes, least, deepest) -> None:
    """Any text: what the definition says, node for node."""
    shape = Shape(width=width, depth=depth, nodes=nodes)
    drafter = SuffixDrafter(VOCAB, least=least, max_match=deepest)
    (draft,) = drafter.propose_trees(drafter.open([context(tokens)]), [context(tokens)], [shape], [StreamDraws(0)])
    assert nodes_of(draft) == grown(tokens, shape, least, deepest)[2]


def test_a_tree_by_hand() -> None:
    """After 3 0 1 came 2 and 3 once each, after 0 1 came 2 twice of three times and 3 after it: which match is worth more depends
    on the room."""
    tokens = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 3, 3, 0, 1]
    drafter = SuffixDrafter(VOCAB)
    states = drafter.open([context(tokens)])
    for text, want in (("2x2", [(3, -1), (2, -1), (3, 1)]), ("2x2:2", [(2, -1), (3, 0)]), ("2x1", [(3, -1), (2, -1)])):
        (draft,) = drafter.propose_trees(states, [context(tokens)], [Shape.parse(text)], [StreamDraws(0)])
        assert nodes_of(draft) == want


@settings(max_examples=100, deadline=None)
@given(tokens=TEXT, cuts=st.lists(st.integers(1, 5), max_size=20))
def test_text_that_comes_in_pieces_is_text(tokens, cuts) -> None:
    """Committed a few tokens at a time, with proposals in between, the automaton is that of the whole text."""
    drafter = SuffixDrafter(VOCAB, max_match=6)
    (state,) = drafter.open([context(tokens[:1])])
    done = 1
    for cut in [*cuts, len(tokens)]:
        done = min(len(tokens), done + cut)
        drafter.commit(state, tokens[:done], None)
        (draft,) = drafter.propose([state], [context(tokens[:done])], [4], [StreamDraws(0)])
        assert list(draft.tokens) == proposal([tokens[:done]], tokens[:done], 4, deepest=6)[2]


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(TEXT, min_size=1, max_size=4), order=st.randoms(use_true_random=False), depth=st.sampled_from([1, 3, 64]))
def test_counts_of_texts_that_grow_side_by_side(texts, order, depth) -> None:
    """Several writers in any order: every substring's count, followers, and places; a reader finds the longest known suffix."""
    automaton, writers = Automaton(depth), [Writer() for _ in texts]
    turns = [which for which, text in enumerate(texts) for _ in text]
    order.shuffle(turns)
    written: list[list[int]] = [[] for _ in texts]
    for which in turns:
        token = texts[which][len(written[which])]
        automaton.write(writers[which], token)
        written[which].append(token)
    for text in texts:
        place = Place()
        for end, token in enumerate(text, 1):
            automaton.read(place, token)
            assert place.length == min(end, depth)
            counts, _ = followers(texts, text[end - place.length : end])
            assert automaton.followed[place.node] == counts.total()
            assert {t: automaton.count[n] for t, n in automaton.next[place.node].items()} == dict(counts)
            assert automaton.best[place.node] == -1 or counts[automaton.best[place.node]] == max(counts.values())
    assert len(automaton.link) <= 2 * automaton.num_tokens + 1


def test_by_hand() -> None:
    """The most counted follower wins, of equals the latest; the longest match where scores are equal; shares end a draft."""
    assert draft_of([0, 1, 0, 2, 0, 1, 3, 0], 1) == [1]
    assert draft_of([0, 1, 0, 2, 0], 1) == [2]
    assert draft_of([3, 0, 1, 0, 2, 3, 0], 1) == [1]
    assert draft_of([0, 1, 2, 3, 0, 1, 2], 6) == [3, 0, 1]
    assert draft_of([0, 1, 2, 3, 0, 1, 2], 6, factor=0.4) == [3]
    assert draft_of([0, 1, 2, 3, 0, 1, 2], 6, factor=2, offset=1) == [3, 0, 1, 2]
    assert draft_of([0, 1, 0, 2, 0], 1, least=0.6) == []


@pytest.mark.parametrize("tokens", [[0], [0, 1], [0, 1, 2, 3]])
def test_nothing_to_find(tokens) -> None:
    """No suffix was met before: an empty draft."""
    assert draft_of(tokens) == []


def after(drafter: SuffixDrafter, prompt: list[int], output: list[int]) -> None:
    """A request that came and went."""
    (state,) = drafter.open([context(prompt)])
    for end in range(1, len(output) + 1):
        drafter.commit(state, prompt + output[:end], None)


def proposed(drafter: SuffixDrafter, tokens: list[int], budget: int = 6) -> list[int]:
    (draft,) = drafter.propose(drafter.open([context(tokens)]), [context(tokens)], [budget], [KeyedDraws(0)])
    return list(draft.tokens)


def test_without_memory_an_earlier_request_leaves_nothing() -> None:
    """Off by default: not even the automata of earlier requests are kept."""
    drafter = SuffixDrafter(VOCAB)
    after(drafter, [0], [1, 2, 3, 1, 2, 3])
    assert proposed(drafter, [0, 1, 2]) == []


def test_memory_recalls_earlier_outputs() -> None:
    """What followed in an earlier output is proposed; what stood in an earlier prompt is not."""
    drafter = SuffixDrafter(VOCAB, memory=100)
    after(drafter, [3, 3, 1], [0, 1, 2, 0, 1, 2, 3])
    assert proposed(drafter, [1, 2, 0]) == [1, 2, 3]
    assert proposed(SuffixDrafter(VOCAB, memory=100), [1, 2, 0]) == []
    again = SuffixDrafter(VOCAB, memory=100)
    after(again, [0, 1, 2, 3], [3])
    assert proposed(again, [0, 1]) == []


def test_of_equal_scores_the_own_text_wins() -> None:
    """Sure of one token each, after matches of one token: the sequence's own."""
    drafter = SuffixDrafter(VOCAB, memory=100)
    after(drafter, [3], [0, 2])
    assert proposed(drafter, [0, 1, 0]) == [1]
    assert proposed(drafter, [1, 0]) == [2]


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXT, max_size=6), tokens=TEXT, limit=st.integers(2, 60), pieces=st.integers(1, 3))
def test_memory_is_bounded_and_holds_the_latest(texts, tokens, limit, pieces) -> None:
    """At most `memory` tokens, at least the latest half of them; a proposal is the best of both automata and the own text."""
    drafter = SuffixDrafter(VOCAB, memory=limit)
    written: list[list[int]] = []
    for text in texts:
        (state,) = drafter.open([context([3])])
        for end in range(0, len(text), pieces):
            drafter.commit(state, [3, *text[: end + pieces]], None)
        written.append(text)
    held = sum(automaton.num_tokens for automaton in drafter._memory.automata)
    total = sum(map(len, written))
    assert min(total, limit // 2) <= held <= limit
    if total <= limit // 2:
        own, recalled = proposal([tokens], tokens, 5), proposal(written, tokens, 5)
        if own[:2] != recalled[:2] or own[2] == recalled[2]:
            assert proposed(drafter, tokens, 5) == max(own, recalled, key=lambda one: one[:2])[2]


def test_memory_with_requests_side_by_side() -> None:
    """Many requests that drop old automata under each other's feet: outputs stay those of plain decoding."""
    drafter, model = SuffixDrafter(VOCAB, memory=40), random_model(5, VOCAB)
    asks = [request((0, 1), vocab=VOCAB, rule="coupled", seed=seed, max_tokens=30) for seed in range(12)]
    plain = [request((0, 1), vocab=VOCAB, rule="coupled", seed=seed, max_tokens=30, gamma=0) for seed in range(12)]
    finished(Decoder(model, drafter), *asks)
    finished(Decoder(model, SuffixDrafter(VOCAB)), *plain)
    assert [one.output for one in asks] == [one.output for one in plain]
    assert sum(one.stats.num_drafted for one in asks) > 100


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"factor": -1}, "`factor` must be 0 or more, got -1"),
        ({"offset": math.inf}, "`offset` must be 0 or more, got inf"),
        ({"least": 0}, "`least` must be over 0 and at most 1, got 0"),
        ({"max_match": 0}, "`max_match` must be 1 or more, got 0"),
        ({"memory": -1}, "`memory` must be .* got -1"),
        ({"memory": 1}, "`memory` must be .* got 1"),
    ],
)
def test_options_that_cannot_be(options, words) -> None:
    """By name."""
    with pytest.raises(OptionError, match=words):
        SuffixDrafter(VOCAB, **options)


def test_time_and_room_a_token_do_not_grow_with_the_text() -> None:
    """Nodes walked over a token: bounded in a loop of one token, in a period, and in a text of two tokens by chance."""
    import random

    chance = random.Random(0)
    for tokens in ([0] * 20_000, [0, 1, 2, 1] * 5000, [chance.randrange(2) for _ in range(20_000)]):
        automaton, writer = Automaton(32), Writer()
        for token in tokens:
            automaton.write(writer, token)
        assert len(automaton.link) <= 40_001
        depth, node = 0, writer.tail.node
        while node > 0:
            depth, node = depth + 1, automaton.link[node]
        assert depth <= 32
