"""Parts of a transformers model, against networks that have only those layers, and what every part must refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headstart.errors import OptionError
from headstart.interfaces import Ask, Divisible
from tests.models.conftest import NATIVES, NETWORKS
from tests.models.test_contract import PARENTS, assert_same, chain_rows, filled, score, tokens_for

DIVISIBLE = (*NETWORKS, *NATIVES)


@pytest.fixture(params=DIVISIBLE)
def model(request: pytest.FixtureRequest, models: dict[str, Any]) -> Any:
    """Each model that has parts."""
    return models[request.param]


@pytest.mark.parametrize("name", NETWORKS)
def test_first_layers_are_a_network_of_those_layers(models: dict[str, Any], name: str) -> None:
    """transformers' own forward pass, without a cache, of a network whose other layers were removed."""
    import copy

    import torch

    model, tokens = models[name], tokens_for(models[name], 20)
    for layers in (1, 2):
        short = copy.deepcopy(model.network)
        short.set_attn_implementation("eager")
        del short.base_model.layers[layers:]
        short.config.num_hidden_layers = layers
        with torch.inference_mode():
            want = short(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()
        part = model.part(layers=layers)
        cache = filled(model, tokens[:6])
        rows = [score(part, cache, tokens[6:7]), score(part, cache, tokens[7:])]
        np.testing.assert_allclose(np.concatenate(rows), want[6:], atol=2e-4)
        assert np.abs(chain_rows(model, tokens) - want).max() > 0.1, "the other layers say nothing"


def test_some_tokens_logits_are_those_of_all(model: Any) -> None:
    """At least the tokens asked for, by increasing id; the caches are the model's."""
    assert isinstance(model, Divisible)
    tokens = tokens_for(model, 9)
    whole = chain_rows(model, [*tokens, 1])
    for ids in ([3], [model.vocab_size - 1, 0], range(model.vocab_size)):
        part = model.part(ids=list(ids))
        cache = part.open()
        (scored,) = part.score([Ask(cache=cache, tokens=tokens)])
        assert set(ids) <= set(scored.ids.tolist())
        assert scored.logits.shape == (9, len(scored.ids))
        assert np.all(np.diff(scored.ids) > 0)
        assert_same(scored.logits, whole[:9, scored.ids])
        assert_same(score(model, cache, [1]), whole[9:])
        both = model.part(layers=1, ids=list(ids))
        (early,) = both.score([Ask(cache=both.open(), tokens=tokens)])
        assert_same(early.logits, chain_rows(model.part(layers=1), tokens)[:, early.ids])


def test_a_draft_by_fewer_layers_leaves_no_trace(model: Any) -> None:
    """Scored by one layer and rewound, and the whole model goes on as if nothing had been."""
    tokens = tokens_for(model, 14)
    want, part = chain_rows(model, tokens), model.part(layers=1)
    cache = filled(model, tokens[:5])
    for place in (5, 8, 11):
        for token in (1, 2, 3):
            score(part, cache, [token])
        cache.rewind(place)
        assert_same(score(model, cache, tokens[place : place + 3]), want[place : place + 3])
        assert cache.length == place + 3


def test_what_fewer_layers_scored_must_be_rewound(model: Any) -> None:
    """More layers refuse, and change nothing; in forks and after kept paths too. A cache may begin with fewer layers."""
    part, tokens = model.part(layers=1), tokens_for(model, 8)
    cache = model.open()
    score(part, cache, tokens[:3])
    for held in (cache, cache.fork()):
        for more in (model, model.part(layers=2)):
            with pytest.raises(ValueError, match="must be rewound"):
                score(more, held, [1])
        assert held.length == 3
    score(part, cache, tokens[3:4])
    cache.rewind(0)
    assert_same(score(model, cache, tokens[:4]), chain_rows(model, tokens[:4]))
    score(part, cache, tokens_for(model, len(PARENTS), 3), parents=PARENTS)
    cache.keep([0, 2])
    with pytest.raises(ValueError, match="must be rewound"):
        score(model, cache, [1])
    cache.keep([])
    assert_same(score(model, cache, tokens[4:]), chain_rows(model, tokens)[4:])
    score(model, cache, [1, 2])
    cache.keep([0])
    assert_same(score(model, cache, [3]), chain_rows(model, [*tokens, 1, 3])[-1:])


def test_parts_there_are_not(model: Any) -> None:
    """By name, with what may be asked for."""
    for layers in (0, -1, model.num_layers + 1):
        with pytest.raises(OptionError, match=f"`layers` must be from 1 to the model's {model.num_layers}, got {layers}"):
            model.part(layers=layers)
    for ids in ([], [model.vocab_size], [-1]):
        with pytest.raises(OptionError, match=f"`ids` must be tokens from 0 to {model.vocab_size - 1}"):
            model.part(ids=ids)


def test_weights_are_shared(models: dict[str, Any]) -> None:
    """A part in transformers brings no layers of its own, only rows of the head."""
    model = models["llama"]
    part = model.part(layers=2, ids=[1, 2, 3])
    mine = {id(weight): weight for weight in model.network.parameters()}
    new = [weight for weight in part.network.parameters() if id(weight) not in mine]
    assert [tuple(weight.shape) for weight in new] == [(3, 32)]
    assert len(part.network.base_model.layers) == 2
    assert len(model.network.base_model.layers) == model.num_layers
