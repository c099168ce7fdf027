"""Angles of heads: as transformers has them, read from both forms of configuration, written back, and refused by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.checkpoints import Rope, read_head, write_head
from headstart.checkpoints.rope import read_rope
from headstart.errors import ModelError
from tests.checkpoints.heads import eagle

KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "yarn, all numbers": {
        "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 20.0, "beta_slow": 2.0, "attention_factor": 1.3,
    },
}  # fmt: skip


def scaling_of(name: str) -> dict[str, Any]:
    """What stands in a configuration."""
    return {"rope_type": name.split(",")[0], **KINDS[name]}


@pytest.mark.parametrize("name", [name for name in KINDS if name != "default"])
@given(theta=st.floats(10.0, 1e7), half=st.sampled_from([4, 16, 32, 64]))
@settings(max_examples=20, deadline=None)
def test_angles_are_those_of_transformers(name: str, theta: float, half: int) -> None:
    """Rates to float32's precision, and the magnitude."""
    known = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    config = pytest.importorskip("transformers").LlamaConfig(
        hidden_size=8 * half, num_attention_heads=4, head_dim=2 * half, max_position_embeddings=256,
        rope_parameters=scaling_of(name) | {"rope_theta": theta},
    )  # fmt: skip
    rates, magnitude = known[name.split(",")[0]](config, "cpu")
    got = read_rope({"rope_theta": theta, "rope_scaling": scaling_of(name)})
    np.testing.assert_allclose(got.rates(2 * half), rates.numpy(), rtol=2e-5)
    assert got.magnitude == pytest.approx(magnitude)


@pytest.mark.parametrize("name", list(KINDS))
def test_both_forms_say_the_same(name: str) -> None:
    """`rope_theta` with `rope_scaling`, and `rope_parameters`, which transformers 5 writes."""
    old = read_rope({"rope_theta": 5e5, "rope_scaling": scaling_of(name), "max_position_embeddings": 999})
    new = read_rope({"rope_parameters": scaling_of(name) | {"rope_theta": 5e5}, "max_position_embeddings": 999})
    both = read_rope({"rope_theta": 5e5} | {key: scaling_of(name) for key in ("rope_scaling", "rope_parameters")})
    older = {("type" if key == "rope_type" else key): value for key, value in scaling_of(name).items()}
    assert old == new == both == read_rope({"rope_theta": 5e5, "rope_scaling": older})
    assert old == read_rope(old.to_json())
    assert read_rope({"rope_theta": 5e5, "rope_scaling": None}) == Rope(theta=5e5)


def test_the_length_before_scaling_may_stand_outside() -> None:
    """As in older configurations; without any it is refused."""
    scaling = {"rope_type": "yarn", "factor": 4.0}
    assert read_rope({"rope_scaling": scaling, "max_position_embeddings": 64}).original_length == 64
    with pytest.raises(ModelError, match="original_max_position_embeddings"):
        read_rope({"rope_scaling": scaling})


@pytest.mark.parametrize("form", ["eagle3", "speculators"])
def test_written_heads_keep_their_angles(form: str, tmp_path) -> None:
    """In both formats."""
    rope = read_rope({"rope_theta": 5e5, "rope_scaling": scaling_of("llama3")})
    write_head(eagle(3, rope=rope), tmp_path, form)
    head = read_head(tmp_path)
    assert head.config.rope == rope


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "type 'dynamic'.*linear, llama3, yarn"),
        ({"rope_scaling": {"type": 3}}, "type 3"),
        ({"rope_scaling": "yarn"}, "must be an object"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "has no factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "factor.*1 or more, got 0.5"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "factor.*must be a number"),
        ({"rope_scaling": scaling_of("llama3") | {"low_freq_factor": -1.0}}, "low_freq_factor.*positive"),
        ({"rope_scaling": scaling_of("yarn") | {"mscale": 1.0}}, "mscale"),
        ({"rope_scaling": scaling_of("yarn") | {"truncate": False}}, "untruncated"),
        ({"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial"),
        ({"rope_scaling": scaling_of("yarn"), "rope_parameters": scaling_of("linear")}, "which counts"),
        ({"rope_theta": 0.5}, "above 1"),
        ({"rope_parameters": {"rope_theta": math.inf}}, "rope_theta"),
    ],
)
def test_what_is_not_known_is_refused_in_one_line(layer: dict[str, Any], message: str) -> None:
    """With the key, its value and what is known."""
    with pytest.raises(ModelError, match=message) as refused:
        read_rope(layer)
    assert "\n" not in str(refused.value)
