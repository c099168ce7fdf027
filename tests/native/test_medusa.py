"""Medusa heads on the native engine: near their float32 computation, the same bits alone and together, and bad ones refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from headstart import _core
from headstart.checkpoints import MedusaHead, Tensor
from headstart.drafters import MedusaDrafter
from headstart.drafters.medusa_forward import MedusaForward
from headstart.draws import StreamDraws
from headstart.errors import ModelError
from headstart.interfaces import Context, ProductEngine
from headstart.probs import SamplingProcessor
from headstart.records import Sampling
from headstart.shapes import Shape
from tests.checkpoints.heads import tensor
from tests.native.conftest import Loaded
from tests.native.random_gguf import VOCAB
from tests.native.test_bit_exact import assert_same_bits

HIDDEN, DRAFT, HEADS = 256, 37, 3


def head_of(num_layers: int = 1, *, dtype: str = "F16", shared: bool = True, seed: int = 0) -> MedusaHead:
    """Random heads beside the random models, small enough to keep numbers near one."""
    rng = np.random.default_rng(seed)

    def part(*shape: int) -> Tensor:
        found = tensor(rng, shape, dtype)
        return Tensor(found.array, dtype) if dtype == "BF16" else Tensor.of((found.array / 8).astype(found.array.dtype))

    weights = {}
    for i in range(HEADS):
        for layer in range(num_layers):
            weights[f"{i}.{layer}.linear.weight"] = part(HIDDEN, HIDDEN)
            weights[f"{i}.{layer}.linear.bias"] = part(HIDDEN)
        weights[f"{i}.{num_layers}.weight"] = weights[f"0.{num_layers}.weight"] if shared and i else part(DRAFT, HIDDEN)
    return MedusaHead(
        num_heads=HEADS, num_layers=num_layers, hidden_size=HIDDEN, vocab_size=VOCAB, draft_vocab_size=DRAFT, weights=weights,
        token_ids=np.sort(rng.permutation(VOCAB)[:DRAFT]).astype(np.int64),
    )  # fmt: skip


def states(count: int = 4) -> np.ndarray:
    """Hidden states."""
    return np.random.default_rng(5).normal(size=(count, HIDDEN)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("num_layers", [0, 1, 2])
def test_rows_are_near_the_float32_computation(loaded: Loaded, num_layers: int, shared: bool, dtype: str) -> None:
    """8-bit weights and activations move logits by a few hundredths of their spread, 4-bit ones by more, but not by much."""
    model, head = loaded("llama", "Q8_0"), head_of(num_layers, dtype=dtype, shared=shared)
    assert isinstance(model, ProductEngine)
    expected = MedusaForward(head).logits(states(), HEADS)
    assert expected.shape == (HEADS, 4, DRAFT)
    errors = []
    for quantize in (None, "q8_0", "q4_0"):
        got = MedusaForward(head, model, quantize=quantize).logits(states(), HEADS)
        errors.append(float(np.abs(got - expected).max() / expected.std()))
    assert errors[0] == errors[1] < 0.1
    assert errors[1] < errors[2] < 1.5


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("num_layers", [0, 1, 2])
def test_a_row_does_not_depend_on_what_rides_along(loaded: Loaded, num_layers: int, shared: bool) -> None:
    """The same bits with other sequences, with fewer heads, on one thread and with portable kernels."""
    head = head_of(num_layers, shared=shared)
    whole = MedusaForward(head, loaded("llama", "Q8_0", threads=3)).logits(states(), HEADS)
    for model in (loaded("llama", "Q8_0", threads=1), loaded("llama", "Q8_0", instruction_set="portable")):
        forward = MedusaForward(head, model)
        for i in range(4):
            for heads in range(1, HEADS + 1):
                assert_same_bits(forward.logits(states()[i : i + 1], heads), whole[:heads, i : i + 1])
    many = MedusaForward(head, loaded("llama", "Q8_0")).logits(np.concatenate([states()] * 100), HEADS)  # several passes
    assert_same_bits(many[:, -4:], whole)


def test_drafts_are_drawn_from_the_rows_they_carry(loaded: Loaded) -> None:
    """Chains and trees, greedy and drawn: tokens of the heads' vocabulary, the same again."""
    model, head = loaded("llama", "Q8_0"), head_of()
    drafter = MedusaDrafter(head, model, num_layers=model.num_layers)
    assert head.token_ids is not None
    for sampling in (Sampling(temperature=0.0), Sampling(temperature=1.0), Sampling(temperature=1.0, top_k=5)):
        processor = SamplingProcessor(sampling, num_prompt=3, vocab_size=VOCAB)
        context = Context(tokens=[3, 1, 4, 1, 5], num_prompt=3, processor=processor)
        (state,) = drafter.open([context])
        drafter.commit(state, context.tokens, states())
        (draft,) = drafter.propose([state], [context], [9], [StreamDraws(1)])
        (again,) = drafter.propose([state], [context], [9], [StreamDraws(1)])
        (tree,) = drafter.propose_trees([state], [context], [Shape(width=3, depth=3, nodes=7)], [StreamDraws(1)])
        assert len(draft) == HEADS
        assert draft.tokens == again.tokens
        assert 2 <= tree.depth <= HEADS
        assert 4 <= len(tree) <= 7
        assert set(draft.tokens) | set(tree.tokens) <= set(head.token_ids.tolist())


def test_matrices_that_cannot_be_used_are_refused_in_one_line(loaded: Loaded) -> None:
    """Numbers that are none, and inputs that are no whole groups."""
    model, head = loaded("llama", "Q8_0"), head_of()
    broken = head.weights["1.0.linear.weight"].array.copy()
    broken[3, 4] = np.nan
    weights = {**head.weights, "1.0.linear.weight": Tensor.of(broken)}
    with pytest.raises(ModelError, match="not finite") as refused:
        MedusaForward(replace(head, weights=weights), model)
    assert "\n" not in str(refused.value)
    with pytest.raises(ModelError, match="multiple of 32"):
        model.products([Tensor.of(np.ones((4, 40), np.float32))])


def test_the_core_checks_for_itself(loaded: Loaded) -> None:
    """Whatever Python let through: shapes, places, widths; and what it holds is told."""
    core = loaded("llama", "Q8_0").core
    good = np.ones((20, 64), np.float32)
    for bad in (np.ones(64, np.float32), np.ones((0, 64), np.float32), np.ones((4, 0), np.float32)):
        with pytest.raises((_core.FileError, ValueError)):
            _core.Products.load(core, [("m", bad, "F32")])
    with pytest.raises(ValueError, match="of that size"):
        _core.Products.load(core, [("m", good, "F16")])
    with pytest.raises(ValueError, match="Q8_0"):
        _core.Products.load(core, [("m", good, "F32")], "Q3")
    products = _core.Products.load(core, [("m", good, "F32")])
    x = np.ones((2, 64), np.float32)
    np.testing.assert_allclose(products.multiply(0, x), np.full((2, 20), 64.0), rtol=0.01)
    assert products.multiply(0, x, 17).shape == (2, 17)
    assert products.multiply(0, x[:0]).shape == (0, 20)
    for index, rows, outputs in ((1, x, None), (0, x, 0), (0, x, 21), (0, x[:, :32].copy(), None)):
        with pytest.raises(ValueError, match="`"):
            products.multiply(index, rows, outputs)
    sizes = [_core.Products.load(core, [("m", np.ones((n, 64), np.float32), "F32")]).weight_bytes for n in (16, 160, 1600)]
    assert all(a < b for a, b in pairwise(sizes))
