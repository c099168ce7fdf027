"""Parts of a native model: the head's rows for some tokens, and the first layers with their own norm and head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headstart.errors import OptionError
from headstart.interfaces import Ask
from headstart.models.native import NativeModel
from tests.native.conftest import Loaded, Written
from tests.native.random_gguf import VOCAB
from tests.native.test_bit_exact import PARENTS, assert_same_bits, filled, one_by_one, over_architectures, score, tokens_for

SUBSETS = ([0], [VOCAB - 1], [3, 40], list(range(VOCAB)), [17, 18, 70, 5])


@over_architectures
@pytest.mark.parametrize("kind", ["F16", "Q4_1", "Q8_0", "Q6_K"])
def test_logits_of_some_tokens_are_those_of_all(loaded: Loaded, architecture: str, kind: str) -> None:
    """The same bits, in any pass, on any number of threads; at least the tokens asked for, at most fifteen beside each."""
    tokens = tokens_for(12)
    for threads in (1, 2):
        model = loaded(architecture, kind, threads=threads)
        whole = one_by_one(model, tokens)
        for subset in SUBSETS:
            part = model.part(ids=subset)
            cache = part.open()
            (first,) = part.score([Ask(cache=cache, tokens=tokens[:5], num_logits=2)])
            (second,) = part.score([Ask(cache=cache, tokens=tokens[5:])])
            assert set(subset) <= set(first.ids.tolist())
            assert len(first.ids) <= 16 * len(subset)
            assert np.all(np.diff(first.ids) > 0)
            assert_same_bits(np.concatenate([first.logits, second.logits]), whole[3:, first.ids])
            assert_same_bits(score(model, cache, [1]), one_by_one(model, [*tokens, 1])[-1:])


@over_architectures
def test_the_first_layers_are_a_model_of_those_layers(written: Written, architecture: str) -> None:
    """A file with fewer layers and the same weights in them: the same bits, from caches that the whole model filled."""
    tokens = tokens_for(20)
    whole = NativeModel.load(written(architecture, "F32").path, threads=2)
    for layers in range(1, whole.num_layers):
        short = NativeModel.load(cut_file(written, architecture, layers), threads=2)
        want = one_by_one(short, tokens)
        part = whole.part(layers=layers)
        assert_same_bits(score(part, part.open(), tokens), want)
        cache = filled(whole, tokens[:9])
        for place in range(9, 14):
            assert_same_bits(score(part, cache, [tokens[place]]), want[place : place + 1])
        assert_same_bits(score(part, cache, tokens[14:]), want[14:])


def cut_file(written: Written, architecture: str, layers: int) -> Any:
    """The random model of `architecture` written anew without its last layers."""
    from gguf import GGUFReader, GGUFWriter

    made = written(architecture, "F32")
    path = made.path.with_name(f"{architecture}-{layers}.gguf")
    if path.exists():
        return path
    reader, writer = GGUFReader(made.path), GGUFWriter(path, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = layers if name.endswith(".block_count") else field.contents()
        if isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, field.types[0])
    for tensor in reader.tensors:
        if not tensor.name.startswith("blk.") or int(tensor.name.split(".")[1]) < layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@over_architectures
@pytest.mark.parametrize("kind", ["F32", "Q4_1"])
def test_the_targets_rows_after_a_draft_are_untouched(loaded: Loaded, architecture: str, kind: str) -> None:
    """Drafts of any length by any layers, rewound: not a bit of what the whole model says changes; beside other sequences too."""
    model, tokens = loaded(architecture, kind), tokens_for(40)
    want = one_by_one(model, tokens)
    for layers in range(1, model.num_layers):
        part = model.part(layers=layers, ids=[3, 5])
        cache, other, place = filled(model, tokens[:7]), filled(model, tokens[:18]), 7
        for drafted in (1, 4, 9, 2):
            for step in range(drafted):
                part.score([Ask(cache=cache, tokens=[step]), Ask(cache=other, tokens=[step, 2])])
            cache.rewind(place)
            other.rewind(18)
            rows = model.score([Ask(cache=cache, tokens=tokens[place : place + 3]), Ask(cache=other, tokens=tokens[18:20])])
            assert_same_bits(rows[0].logits, want[place : place + 3])
            assert_same_bits(rows[1].logits, want[18:20])
            place += 2
            cache.rewind(place)
            other.rewind(18)


def test_what_fewer_layers_scored_must_be_rewound(loaded: Loaded) -> None:
    """More layers refuse to go on from it, in a fork and after a kept path too; as many or fewer may."""
    model = loaded("gemma3", "F32")
    three, two, tokens = model.part(layers=3), model.part(layers=2), tokens_for(8)
    cache = filled(model, tokens[:4])
    score(three, cache, tokens[4:6])
    score(two, cache, tokens[6:7])
    for held in (cache, cache.fork()):
        for more in (model, three, model.part(layers=7)):
            with pytest.raises(ValueError, match="must be rewound"):
                score(more, held, [1])
        assert held.length == 7
    score(two, cache, [1])
    cache.rewind(5)
    with pytest.raises(ValueError, match="must be rewound"):
        score(model, cache, [1])
    cache.rewind(4)
    assert_same_bits(score(model, cache, tokens[4:]), one_by_one(model, tokens)[4:])
    cache.rewind(4)
    score(three, cache, tokens_for(len(PARENTS)), parents=PARENTS)
    cache.keep([0, 2])
    with pytest.raises(ValueError, match="must be rewound"):
        score(model, cache, [1])
    cache.keep([])
    assert_same_bits(score(model, cache, tokens[4:]), one_by_one(model, tokens)[4:])


def test_parts_there_are_not(loaded: Loaded) -> None:
    """Layers and tokens out of range, by name; and what the core itself refuses."""
    model = loaded("llama", "F32")
    for layers in (0, -1, model.num_layers + 1):
        with pytest.raises(OptionError, match="`layers` must be from 1 to the model's 2"):
            model.part(layers=layers)
    for ids in ([], [VOCAB], [-1]):
        with pytest.raises(OptionError, match="`ids` must be tokens from 0 to 76"):
            model.part(ids=ids)
    cache = model.open()
    for asked in ({"layers": 3}, {"layers": -1}, {"tiles": [5]}, {"tiles": [1, 1]}, {"tiles": [-1]}, {"tiles": [2, 0]}):
        with pytest.raises(ValueError, match=next(iter(asked))):
            model.core.score([(cache.core, [1], None, 1)], **asked)
    with pytest.raises(ValueError, match="feature_layers"):
        model.core.score([(cache.core, [1], None, 1)], feature_layers=[1], layers=1)
    assert cache.length == cache.core.length == 0


def test_twin_that_does_not_rewind_is_caught(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above can fail: a cache that keeps a drafted token gives other rows, or is refused."""
    from headstart.models.native import NativeCache

    rewind = NativeCache.rewind
    monkeypatch.setattr(NativeCache, "rewind", lambda cache, length: rewind(cache, min(cache.length, length + 1)))
    with pytest.raises((AssertionError, ValueError)):
        test_the_targets_rows_after_a_draft_are_untouched(loaded, "llama", "F32")
