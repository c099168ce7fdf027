"""Files of strangers: safetensors as the reference library reads them, pickles without running anything."""

from __future__ import annotations

import contextlib
import json
import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.checkpoints import Tensor, read_head, read_safetensors, write_head, write_safetensors
from headstart.errors import ModelError
from tests.checkpoints.heads import eagle, medusa, tensor


def test_safetensors_agree_with_the_reference_library(tmp_path) -> None:
    """What we write it reads, and the other way round, bit for bit, bfloat16 included."""
    torch = pytest.importorskip("torch")
    reference = pytest.importorskip("safetensors.torch")
    rng = np.random.default_rng(0)
    ours = {name: tensor(rng, (3, 5), name) for name in ("F32", "F16", "BF16")} | {"ids": Tensor.of(np.arange(4))}
    write_safetensors(tmp_path / "a.safetensors", ours)
    theirs = reference.load_file(tmp_path / "a.safetensors")
    assert set(theirs) == set(ours)
    for name, value in ours.items():
        bits = theirs[name].view(torch.int16).numpy().view(np.uint16) if name == "BF16" else theirs[name].numpy()
        assert bits.tobytes() == value.array.tobytes()
        assert theirs[name].float().numpy().tolist() == value.floats().tolist()
    reference.save_file(theirs, tmp_path / "b.safetensors")
    back = read_safetensors(tmp_path / "b.safetensors")
    assert all(back[name].same_as(value) for name, value in ours.items())


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_bytes_crash_the_reader(data, tmp_path_factory) -> None:
    """Whatever bytes are changed, cut or added, the outcome is tensors or one error."""
    path = tmp_path_factory.mktemp("bytes") / "x.safetensors"
    write_safetensors(path, {"a": Tensor.of(np.arange(6.0)), "b": Tensor.of(np.arange(3))})
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    with contextlib.suppress(ModelError):
        read_safetensors(path)


@pytest.mark.parametrize(
    "entry",
    [{"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]},
     {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, {"dtype": "F8", "shape": [4], "data_offsets": [0, 4]},
     {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}, {"dtype": "F32", "shape": 1}, [], "x"],
)  # fmt: skip
def test_headers_that_lie_are_refused(entry, tmp_path) -> None:
    """Sizes that do not fit, types there are not, entries that are none."""
    text = json.dumps({"a": entry}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(ModelError, match=r"x\.safetensors"):
        read_safetensors(tmp_path / "x.safetensors")


def test_a_name_given_twice_and_a_pointer_are_refused(tmp_path) -> None:
    """Which of two was meant cannot be told; a Git LFS pointer is called one."""
    entry = '{"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}'
    text = f'{{"a": {entry}, "a": {entry}}}'.encode()
    (tmp_path / "x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(ModelError, match="a name is given twice"):
        read_safetensors(tmp_path / "x.safetensors")
    (tmp_path / "x.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(ModelError, match="git lfs pull"):
        read_safetensors(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("head", "form", "old", "new"),
    [(eagle(1, dtype="BF16"), "eagle", "model.safetensors", "pytorch_model.bin"),
     (medusa(dtype="F16"), "medusa", "medusa_lm_head.safetensors", "medusa_lm_head.pt")],
)  # fmt: skip
def test_pickles_of_tensors_are_read(head, form, old, new, tmp_path) -> None:
    """As the authors first published them; the bits are those of the safetensors file."""
    torch = pytest.importorskip("torch")
    reference = pytest.importorskip("safetensors.torch")
    write_head(head, tmp_path, form)
    torch.save(reference.load_file(tmp_path / old), tmp_path / new)
    (tmp_path / old).unlink()
    again = read_head(tmp_path)
    assert all(again.weights[name].same_as(value) for name, value in head.weights.items())


def test_pickles_of_anything_else_are_not_run(tmp_path) -> None:
    """A pickle that would run a command is refused, and the command does not run."""
    pytest.importorskip("torch")

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    write_head(eagle(1), tmp_path, "eagle")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": Evil()}))
    with pytest.raises(ModelError, match="more than tensors"):
        read_head(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_folders_without_a_head_say_what_is_missing(tmp_path) -> None:
    """No config, no weights, a config that is no JSON."""
    with pytest.raises(ModelError, match=r"no config\.json"):
        read_head(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"none of model\.safetensors"):
        read_head(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ModelError, match="must hold a JSON object, got a list"):
        read_head(tmp_path)
