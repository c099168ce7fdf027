"""Medusa heads: rows against an independent float32 computation in torch, from files in both published forms."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.checkpoints import read_head, write_head
from headstart.drafters import MedusaDrafter
from headstart.draws import StreamDraws
from headstart.interfaces import Context, ShortDrafter
from headstart.probs import SamplingProcessor
from headstart.records import Sampling
from headstart.shapes import Shape
from tests.checkpoints.heads import HIDDEN, VOCAB, medusa

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")


def context(tokens, **options) -> Context:
    """What a drafter sees."""
    processor = SamplingProcessor(Sampling(**({"temperature": 0.8} | options)), num_prompt=2, vocab_size=VOCAB)
    return Context(tokens=tokens, num_prompt=2, processor=processor)


@pytest.mark.parametrize(("form", "cut"), [("medusa", False), ("vllm-medusa", False), ("vllm-medusa", True)])
@pytest.mark.parametrize("num_layers", [0, 1, 2])
def test_rows_equal_an_independent_computation(form, cut, num_layers, tmp_path) -> None:
    """Each head's row is its own network on the newest hidden state, over its own tokens."""
    write_head(medusa(cut=cut, num_layers=num_layers), tmp_path, form)
    head = read_head(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    w = safetensors.load_file(file)
    drafter = MedusaDrafter(head, num_layers=6)
    assert tuple(drafter.feature_layers) == (6,)
    tokens, features = [3, 1, 4, 1], np.random.default_rng(3).normal(size=(3, HIDDEN)).astype(np.float32)
    (state,) = drafter.open([context(tokens)])
    drafter.commit(state, tokens, features)
    (draft,) = drafter.propose([state], [context(tokens)], [7], [StreamDraws(0)])
    assert len(draft) == drafter.longest == 3  # as many as there are heads
    assert isinstance(drafter, ShortDrafter)
    ids = w["token_map"].long() if cut else torch.arange(VOCAB)
    for i, row in enumerate(draft.rows):
        x = torch.from_numpy(features[-1])
        for layer in range(num_layers):
            name = f"{i}.{layer}.linear." if form == "medusa" else f"blocks.{i}.layers.{layer}."
            x = x + torch.nn.functional.silu(torch.nn.functional.linear(x, w[name + "weight"], w[name + "bias"]))
        logits = w[f"{i}.{num_layers}.weight" if form == "medusa" else f"lm_heads.{i}.weight"] @ x
        want = torch.zeros(VOCAB)
        want[ids] = torch.softmax(logits / 0.8, dim=-1)
        np.testing.assert_allclose(row.to_array(), want.numpy(), atol=1e-5)


def test_only_the_newest_hidden_state_is_read() -> None:
    """Known for the text at hand it drafts, batched or alone; a text that has moved on without it, or has none, gets nothing."""
    drafter = MedusaDrafter(medusa(), num_layers=6)
    tokens, features = [3, 1, 4, 1], np.random.default_rng(3).normal(size=(3, HIDDEN)).astype(np.float32)
    states = drafter.open([context(tokens)] * 3)
    drafter.commit(states[0], tokens, features)
    drafter.commit(states[1], tokens, features[-1:])
    drafter.commit(states[2], tokens, None)
    draws = [StreamDraws(0) for _ in states]
    first, second, third = drafter.propose(states, [context(tokens)] * 3, [3, 2, 3], draws)
    assert first.tokens[:2] == second.tokens
    assert len(second) == 2
    assert len(third) == 0
    (moved,) = drafter.propose(states[:1], [context([*tokens, 2])], [3], draws[:1])
    assert len(moved) == 0


def ready(cut: bool = False) -> tuple[MedusaDrafter, object, list[int]]:
    """A drafter, a state that knows the text, and the text."""
    drafter = MedusaDrafter(medusa(cut=cut), num_layers=6)
    tokens, features = [3, 1, 4, 1], np.random.default_rng(3).normal(size=(3, HIDDEN)).astype(np.float32)
    (state,) = drafter.open([context(tokens)])
    drafter.commit(state, tokens, features)
    return drafter, state, tokens


@pytest.mark.parametrize("cut", [False, True])
def test_a_chosen_tree_is_made_of_each_head_s_likeliest_tokens(cut) -> None:
    """Greedy, of the paper's kind of shape: the child of rank r at depth d is head d's r-th token, whatever it hangs from."""
    drafter, state, tokens = ready(cut)
    (chain,) = drafter.propose([state], [context(tokens)], [3], [StreamDraws(0)])
    order = [np.argsort(-row.to_array(), kind="stable").tolist() for row in chain.rows]
    paths = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 1, 0]]
    shape = Shape.of_paths(paths)
    (tree,) = drafter.propose_trees([state], [context(tokens, temperature=0.0)], [shape], [StreamDraws(0)])
    found = {tuple(tree.tokens[node - 1] for node in tree.path(node)) for node in range(1, len(tree) + 1)}
    assert found == {tuple(order[depth][rank] for depth, rank in enumerate(path)) for path in paths}
    assert all(row.is_point for row in tree.rows)


def test_a_tree_is_no_deeper_than_there_are_heads_and_no_larger_than_its_shape() -> None:
    """Greedy and drawn; drawn siblings come without replacement, each with the row it was drawn from; in a batch as alone."""
    drafter, state, tokens = ready()
    many = [context(tokens, temperature=0.0), context(tokens), context([*tokens, 2])]
    shapes = [Shape.parse("2x5:7"), Shape.parse("3x2"), Shape.parse("2x2")]
    draws = [StreamDraws(seed) for seed in range(3)]
    chosen, drawn, nothing = drafter.propose_trees([state] * 3, many, shapes, draws)
    assert (chosen.depth, len(chosen)) == (3, 7)
    assert (drawn.depth, len(drawn)) == (2, 6)
    assert len(nothing) == 0
    (alone,) = drafter.propose_trees([state], [context(tokens)], [shapes[1]], [StreamDraws(1)])
    assert alone.tokens == drawn.tokens
    (first,) = drafter.propose([state], [context(tokens)], [1], [StreamDraws(0)])
    for node in (0, *range(1, 7)):
        children = drawn.children(node)
        left = 1.0
        for child in children:
            token, row = drawn.tokens[child - 1], drawn.rows[child - 1]
            assert row.prob(token) > 0
            if node == 0:
                assert row.to_array()[token] == pytest.approx(first.rows[0].prob(token) / left, rel=1e-3)
                left -= first.rows[0].prob(token)
