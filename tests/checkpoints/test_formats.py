"""Every published format: what it is called, that nothing is lost on the way, and that what is wrong is named."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from headstart.checkpoints import (
    FORMATS,
    EagleHead,
    MedusaHead,
    Tensor,
    read_head,
    read_safetensors,
    write_head,
    write_safetensors,
)
from headstart.errors import ModelError, OptionError
from tests.checkpoints.heads import DRAFT, HIDDEN, TARGET_HIDDEN, VOCAB, eagle, medusa, tensor

CASES = {
    "eagle": (lambda dtype: eagle(1, dtype=dtype), "eagle"),
    "eagle with biases": (lambda dtype: eagle(1, dtype=dtype, fc_bias=True, attention_bias=True), "eagle"),
    "eagle3": (lambda dtype: eagle(3, dtype=dtype), "eagle3"),
    "eagle3, whole vocabulary": (lambda dtype: eagle(3, dtype=dtype, draft_vocab_size=VOCAB), "eagle3"),
    "eagle3, the target's head": (lambda dtype: eagle(3, dtype=dtype, own_head=False), "eagle3"),
    "eagle3, other layers": (lambda dtype: eagle(3, dtype=dtype, feature_layers=(1, 4, 6)), "eagle3"),
    "speculators": (lambda dtype: eagle(3, dtype=dtype, norm_before_residual=True), "speculators"),
    "medusa": (lambda dtype: medusa(dtype=dtype), "medusa"),
    "vllm-medusa": (lambda dtype: medusa(dtype=dtype), "vllm-medusa"),
    "vllm-medusa, cut": (lambda dtype: medusa(dtype=dtype, cut=True), "vllm-medusa"),
}


def assert_same(a: EagleHead | MedusaHead, b: EagleHead | MedusaHead) -> None:
    """Equal in every bit of every weight, and in every field."""
    assert type(a) is type(b)
    assert set(a.weights) == set(b.weights)
    for name in a.weights:
        assert a.weights[name].same_as(b.weights[name]), name
    assert (a.token_ids is None) == (b.token_ids is None)
    assert a.token_ids is None or a.token_ids.tolist() == b.token_ids.tolist()
    if isinstance(a, EagleHead):
        assert a.config == b.config
    else:
        sizes = ("num_heads", "num_layers", "hidden_size", "vocab_size", "draft_vocab_size")
        assert [getattr(a, name) for name in sizes] == [getattr(b, name) for name in sizes]


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("case", CASES)
def test_round_trips_lose_no_bit(case, dtype, tmp_path) -> None:
    """Written and read again, twice: the same bits, the same sizes, the same vocabulary."""
    make, form = CASES[case]
    head = make(dtype)
    write_head(head, tmp_path / "a", form)
    again = read_head(tmp_path / "a")
    assert_same(head, again)
    write_head(again, tmp_path / "b", form)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_published_names_and_shapes(tmp_path) -> None:
    """The keys are those of the published files, d2t holds offsets."""
    head = eagle(3)
    write_head(head, tmp_path / "eagle3", "eagle3")
    held = read_safetensors(tmp_path / "eagle3" / "model.safetensors")
    attention = [f"midlayer.self_attn.{name}_proj.weight" for name in "qkvo"]
    norms = [f"midlayer.{name}.weight" for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")]
    mlp = [f"midlayer.mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
    others = ["fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"]
    assert sorted(held) == sorted([*attention, *norms, *mlp, *others])
    assert held["fc.weight"].shape == (HIDDEN, 3 * TARGET_HIDDEN)
    assert held["d2t"].array.dtype == np.int64
    assert (held["d2t"].array + np.arange(DRAFT)).tolist() == head.token_ids.tolist()
    assert np.flatnonzero(held["t2d"].array).tolist() == head.token_ids.tolist()
    write_head(head, tmp_path / "speculators", "speculators")
    held = read_safetensors(tmp_path / "speculators" / "model.safetensors")
    assert sorted(held) == sorted(name.replace("midlayer.", "layers.0.") for name in [*attention, *norms, *mlp, *others])
    write_head(eagle(1, fc_bias=True), tmp_path / "eagle", "eagle")
    held = read_safetensors(tmp_path / "eagle" / "model.safetensors")
    names = [*attention, *mlp, "midlayer.post_attention_layernorm.weight", "fc.weight", "fc.bias"]
    assert sorted(held) == sorted(name.replace("midlayer.", "layers.0.") for name in names)
    assert held["fc.weight"].shape == (HIDDEN, 2 * HIDDEN)


def test_how_small_a_head_may_be_made_is_kept(tmp_path) -> None:
    """In a key of ours that other readers pass over; a value nobody knows means the usual 8 bits."""
    head = eagle(3)
    small = replace(head, config=replace(head.config, quantize="q4_0"))
    write_head(small, tmp_path, "eagle3")
    assert read_head(tmp_path).config.quantize == "q4_0"
    config = json.loads((tmp_path / "config.json").read_text())
    for value, wanted in (("q4_0", "q4_0"), ("q2", "q8_0"), (["q4_0"], "q8_0")):
        (tmp_path / "config.json").write_text(json.dumps(config | {"headstart_quantize": value}))
        assert read_head(tmp_path).config.quantize == wanted


def test_eagle3_and_speculators_are_one_head(tmp_path) -> None:
    """Converted there and back, nothing has changed."""
    head = eagle(3, dtype="BF16")
    write_head(head, tmp_path / "a", "eagle3")
    write_head(read_head(tmp_path / "a"), tmp_path / "b", "speculators")
    write_head(read_head(tmp_path / "b"), tmp_path / "c", "eagle3")
    assert_same(head, read_head(tmp_path / "c"))


@pytest.mark.parametrize(
    ("head", "form"),
    [(eagle(1), "eagle3"), (eagle(1), "speculators"), (eagle(3), "eagle"), (eagle(3), "medusa"), (medusa(), "eagle3"),
     (medusa(cut=True), "medusa")],
)  # fmt: skip
def test_what_would_compute_something_else_is_refused(head, form, tmp_path) -> None:
    """And nothing is written."""
    with pytest.raises(ModelError, match=r"cannot be written as|holds EAGLE-3|no place for"):
        write_head(head, tmp_path / "x", form)
    assert not (tmp_path / "x").exists()


def test_unknown_format_is_refused(tmp_path) -> None:
    """With a guess at what was meant."""
    with pytest.raises(OptionError, match="did you mean 'eagle3'"):
        write_head(eagle(3), tmp_path, "eagel3")
    assert set(FORMATS) == {"eagle", "eagle3", "speculators", "medusa", "vllm-medusa"}


def test_heads_are_counted_in_the_weights(tmp_path) -> None:
    """A config that says two heads where the file holds five is wrong."""
    write_head(medusa(num_heads=5, num_layers=1), tmp_path, "medusa")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"medusa_num_heads": 2}))
    assert read_head(tmp_path).num_heads == 5


def test_medusa_2_is_found_inside_the_model(tmp_path) -> None:
    """Under `medusa_head.`, among the model's own weights."""
    head = medusa()
    inside = {f"medusa_head.{name}": value for name, value in head.weights.items()}
    rng = np.random.default_rng(1)
    write_safetensors(tmp_path / "model.safetensors", inside | {"model.embed_tokens.weight": tensor(rng, (VOCAB, HIDDEN))})
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 3}')
    assert_same(head, read_head(tmp_path))


def test_vllm_medusa_with_the_original_head_shares_it(tmp_path) -> None:
    """One projection in the file stands for all heads."""
    write_head(medusa(num_heads=2, num_layers=1), tmp_path, "vllm-medusa")
    held = read_safetensors(tmp_path / "model.safetensors")
    del held["lm_heads.1.weight"]
    write_safetensors(tmp_path / "model.safetensors", held)
    with pytest.raises(ModelError, match=rf"no lm_heads.1.weight, wanted with shape \[{VOCAB}, {HIDDEN}\]"):
        read_head(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"original_lm_head": True}))
    weights = read_head(tmp_path).weights
    assert weights["0.1.weight"].same_as(weights["1.1.weight"])


@pytest.mark.parametrize("name", ["fc.weight", "midlayer.mlp.up_proj.weight", "norm.weight", "lm_head.weight"])
def test_missing_keys_and_wrong_shapes_are_named(name, tmp_path) -> None:
    """The error names the key, the shape found and the shape wanted."""
    write_head(eagle(3), tmp_path, "eagle3")
    path = tmp_path / "model.safetensors"
    held = read_safetensors(path)
    whole = held[name]
    shape = ", ".join(map(str, whole.shape))
    write_safetensors(path, {key: value for key, value in held.items() if key != name})
    with pytest.raises(ModelError, match=f"no {name}, wanted"):
        read_head(tmp_path)
    cut = Tensor.of(np.ascontiguousarray(whole.array[:-1]))
    write_safetensors(path, held | {name: cut})
    found = ", ".join(map(str, cut.shape))
    with pytest.raises(ModelError, match=rf"{name} has shape \[{found}\], wanted \[{shape}\]"):
        read_head(tmp_path)


def test_maps_that_cannot_be_are_refused(tmp_path) -> None:
    """No map for a cut vocabulary, a map that names a token twice, and maps that disagree."""
    write_head(eagle(3), tmp_path, "eagle3")
    path = tmp_path / "model.safetensors"
    held = read_safetensors(path)
    write_safetensors(path, {key: value for key, value in held.items() if key not in ("d2t", "t2d")})
    with pytest.raises(ModelError, match="d2t is missing"):
        read_head(tmp_path)
    twice = held["d2t"].array.copy()
    twice[1] = twice[0] - 1
    write_safetensors(path, {key: value for key, value in held.items() if key != "t2d"} | {"d2t": Tensor.of(twice)})
    with pytest.raises(ModelError, match="different tokens"):
        read_head(tmp_path)
    write_safetensors(path, held | {"t2d": Tensor.of(~held["t2d"].array)})
    with pytest.raises(ModelError, match="d2t and t2d"):
        read_head(tmp_path)


@pytest.mark.parametrize(("name", "value"), [("verifier_accept_k", 2), ("accept_tolerance", 0.1)])
def test_lossy_speculators_are_refused(name, value, tmp_path) -> None:
    """The error says why: the output would not be the target's own. The exact values of the two are read."""
    write_head(eagle(3), tmp_path, "speculators")
    read_head(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["speculators_config"]["proposal_methods"][0][name] = value
    path.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=f"{name} of config.json is {value}.*no longer be the target's own"):
        read_head(tmp_path)


@pytest.mark.parametrize(
    ("change", "match"),
    [({"hidden_act": "gelu"}, "hidden_act"), ({"rope_scaling": {"rope_type": "dynamic"}}, "rope_scaling"),
     ({"norm_output": True}, "norm_output"), ({"hidden_size": None}, "hidden_size"), ({"intermediate_size": "x"}, "a number"),
     ({"draft_vocab_size": VOCAB + 1}, "draft_vocab_size|d2t"), ({"num_key_value_heads": 3}, "multiple"),
     ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, "3 layers")],
)  # fmt: skip
def test_configs_that_would_be_run_wrongly_are_refused(change, match, tmp_path) -> None:
    """What the arithmetic does not know is not read past."""
    write_head(eagle(3), tmp_path, "eagle3")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelError, match=match):
        read_head(tmp_path)


def test_a_key_nobody_reads_is_refused(tmp_path) -> None:
    """Newer variants add weights; leaving them out would compute something else."""
    write_head(eagle(3), tmp_path, "eagle3")
    held = read_safetensors(tmp_path / "model.safetensors")
    write_safetensors(tmp_path / "model.safetensors", held | {"fc_norm.weight": held["norm.weight"]})
    with pytest.raises(ModelError, match=r"fc_norm\.weight with shape"):
        read_head(tmp_path)
