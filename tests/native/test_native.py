"""`NativeModel` as users load it: what it states, what it refuses and how, and what one sees while it loads."""

from __future__ import annotations

import gc
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from headstart import _core
from headstart.errors import ModelError, OptionError
from headstart.interfaces import Ask
from headstart.models import native
from headstart.models.native import NativeModel, physical_cores
from tests.native.conftest import Loaded, Written
from tests.native.random_gguf import CONTEXT, VOCAB, Shape, shape_of, write


def test_states_what_it_is(written: Written) -> None:
    """Attributes tell what runs how; loading says nothing but to `progress`, in fractions that grow to one."""
    model = written("qwen3", "Q5_K")
    told: list[tuple[str, float | None]] = []
    loaded = NativeModel.load(model.path, threads=2, context=40, progress=lambda *what: told.append(what))
    assert (loaded.engine, loaded.dtype, loaded.device) == ("native", "Q5_K", "cpu")
    assert (loaded.vocab_size, loaded.context_limit, loaded.threads) == (VOCAB, 40, 2)
    assert loaded.instruction_set == _core.best_instruction_set()
    assert loaded.num_parameters == sum(values.size for values in model.weights.values())
    core = loaded.core
    assert (core.architecture, core.layers, core.hidden, core.heads, core.kv_heads) == ("qwen3", 2, 256, 8, 2)
    assert (core.head_dim, core.ff, core.vocab, core.context, core.window) == (64, 512, VOCAB, 40, 0)
    fractions = [fraction for _, fraction in told]
    (stage,) = {stage for stage, _ in told}
    assert stage == f"reading the weights ({NativeModel.needs(model.path, context=40)})"
    assert re.fullmatch(r"reading the weights \([\d.]+ [kM]B; cache [\d.]+ (kB|bytes) a token, [\d.]+ kB for 40\)", stage)
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)


def test_memory_is_stated(loaded: Loaded, written: Written) -> None:
    """Weights at the file's own bits, plus whole tiles; keys and values two bytes each."""
    model = loaded("llama", "Q4_0")
    matrices = 2 * (2 * 256 * 256 + 2 * 64 * 256 + 3 * 256 * 512) + 80 * 256  # the head's 77 rows fill five tiles of sixteen
    norms = 5 * 256 * 4
    assert model.bytes_per_pass == matrices * 18 // 32 + norms
    assert model.bytes_per_pass < model.weight_bytes <= model.bytes_per_pass + (1 << 16)  # the arena has a little room at its end
    needs = NativeModel.needs(written("llama", "Q4_0").path, context=40)
    assert (needs.weight_bytes, needs.cache_bytes_per_token) == (model.weight_bytes, model.cache_bytes_per_token)
    assert (needs.context, needs.cache_bytes) == (40, 40 * model.cache_bytes_per_token)
    assert model.cache_bytes_per_token == 2 * 2 * 2 * 64
    cache = model.open()
    assert cache.bytes == 0
    model.score([Ask(cache=cache, tokens=[1, 2, 3], num_logits=0)])
    assert 3 * model.cache_bytes_per_token <= cache.bytes <= CONTEXT * model.cache_bytes_per_token


def test_rows_are_the_callers_own(loaded: Loaded) -> None:
    """Logits are float32 arrays that nothing overwrites, and that outlive the model."""
    model = loaded("llama", "F32")
    first = model.score([Ask(cache=model.open(), tokens=[1, 2])])[0].logits
    before = first.copy()
    model.score([Ask(cache=model.open(), tokens=[5, 6])])
    np.testing.assert_array_equal(first, before)
    assert first.dtype == np.float32
    assert first.flags.writeable
    assert first.flags.c_contiguous


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_largest_logit_is_named(loaded: Loaded, threads: int) -> None:
    """Of every row asked for: a few or many a pass, several sequences, parts of the vocabulary, trees, none at all."""
    model = loaded("llama", "Q8_0", threads=threads)
    part = model.part(ids=[3, 40, 41, VOCAB - 1])
    for tokens, wanted in (([5], 1), ([1, 2, 3], 0), (list(range(40)), 40), ([7, 8, 9, 10], 2)):
        for scorer in (model, part):
            for scored in scorer.score([Ask(cache=model.open(), tokens=tokens[::step], num_logits=None) for step in (1, -1)]):
                assert scored.best == scored.logits.argmax(axis=1).tolist()
            (scored,) = scorer.score([Ask(cache=model.open(), tokens=tokens, num_logits=wanted)])
            assert scored.best == scored.logits.argmax(axis=1).tolist()
            assert len(scored.best) == wanted
    (scored,) = model.score([Ask(cache=model.open(), tokens=[1, 2, 3], parents=[-1, 0, 0])])
    assert scored.best == scored.logits.argmax(axis=1).tolist()


def test_of_equal_logits_the_first_is_named_and_a_nan_before_any(tmp_path: Path) -> None:
    """Rows of zeros; and a head with rows that are not numbers, at several places."""
    random = write(tmp_path / "one.gguf", shape_of("llama", tied=False), "F32")
    for marks in ((), (VOCAB - 1,), (70, 20), (0,)):
        path = tmp_path / "changed.gguf"
        path.write_bytes(random.path.read_bytes())
        for tensor in gguf.GGUFReader(path, "r+").tensors:
            if tensor.name == "output.weight":
                tensor.data[:] = 0
                for mark in marks:
                    tensor.data[mark] = np.nan
        for threads in (1, 2, 5):
            model = NativeModel.load(path, threads=threads)
            (scored,) = model.score([Ask(cache=model.open(), tokens=[1, 2])])
            assert scored.best == [min(marks, default=0)] * 2
            assert scored.best == scored.logits.argmax(axis=1).tolist()


def test_caches_keep_their_model_alive(written: Written) -> None:
    """A core cache whose model has no other user still rewinds, forks and goes."""
    cache = NativeModel.load(written("llama").path).open().core
    gc.collect()
    fork = cache.fork()
    fork.rewind(0)
    assert (fork.length, cache.length) == (0, 0)


def test_tokens_of_any_kind(loaded: Loaded) -> None:
    """Lists, tuples, ranges and arrays of any integer type mean the same."""
    model = loaded("llama", "F32")

    def rows(tokens: Any) -> Any:
        return model.score([Ask(cache=model.open(), tokens=tokens)])[0].logits

    expected = rows([3, 4, 5])
    for tokens in ((3, 4, 5), range(3, 6), np.array([3, 4, 5]), np.array([3, 4, 5], np.uint8), [np.int64(3), 4, 5]):
        np.testing.assert_array_equal(rows(tokens), expected)
        core = model.core.score([(model.open().core, tokens, None, 3)])
        np.testing.assert_array_equal(core[0][0], expected)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"threads": 0}, "`threads`"),
        ({"threads": 5000}, "`threads`"),
        ({"context": 0}, "`context`"),
        ({"context": CONTEXT + 1}, f"`context`.*{CONTEXT}.*{CONTEXT + 1}"),
        ({"instruction_set": "avx1024"}, "`instruction_set`.*portable.*avx1024"),
        ({"instruction_set": "portabel"}, "did you mean 'portable'"),
    ],
)
def test_options_that_cannot_be_honoured(written: Written, options: dict[str, Any], named: str) -> None:
    """The option is named, with its value and the way out."""
    with pytest.raises(OptionError, match=named):
        NativeModel.load(written("llama").path, **options)


def _broken(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def rewrite(path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return rewrite


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), "no such file"),
        (_broken(lambda data: b""), "empty"),
        (_broken(lambda data: b"MZ" + data[2:]), "GGUF"),
        (_broken(lambda data: data[: len(data) // 2]), "cut|end|short|whole"),
        (_broken(lambda data: data.replace(b"llama", b"mamba")), "mamba"),
        (_broken(lambda data: data.replace(b"attn_q.weight", b"attn_z.weight")), "attn_"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, damage: Any, said: str) -> None:
    """One line that names the file and what is wrong with it."""
    path = write(tmp_path / "model.gguf", Shape()).path
    damage(path)
    with pytest.raises(ModelError, match=said) as caught:
        NativeModel.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unsupported_types_are_named(tmp_path: Path) -> None:
    """A weight type no kernel knows is refused by name."""
    path = tmp_path / "q2.gguf"
    shape = Shape()
    model = write(tmp_path / "whole.gguf", shape)
    reader = gguf.GGUFReader(model.path)
    writer = gguf.GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if field.name.startswith("llama."):
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        if "ffn_down" in tensor.name:
            data = np.zeros((shape.hidden, shape.ff // 256 * 84), np.uint8)
            writer.add_tensor(tensor.name, data, raw_dtype=gguf.GGMLQuantizationType.Q2_K)
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"ffn_down.*Q2_K"):
        NativeModel.load(path)


def test_heads_that_no_kernel_takes_are_refused(tmp_path: Path) -> None:
    """A head of 20 dimensions fits no tile."""
    path = write(tmp_path / "odd.gguf", shape_of("llama", hidden=96, ff=64, heads=4, kv_heads=4, head_dim=20)).path
    with pytest.raises(ModelError, match="20"):
        NativeModel.load(path)


def test_what_progress_raises_comes_through(written: Written) -> None:
    """Ctrl-C while a model loads is a KeyboardInterrupt, and the next load works."""

    def interrupt(stage: str, fraction: float | None) -> None:
        if fraction:
            raise KeyboardInterrupt

    path = written("llama").path
    with pytest.raises(KeyboardInterrupt):
        NativeModel.load(path, progress=interrupt)
    assert NativeModel.load(path).vocab_size == VOCAB


def test_other_python_threads_run_during_a_pass(loaded: Loaded) -> None:
    """The interpreter is free while the core works."""
    model = loaded("gemma3", "F32", threads=1, instruction_set="portable", context=700)
    beats = 0
    done = threading.Event()

    def beat() -> None:
        nonlocal beats
        while not done.is_set():
            beats += 1
            time.sleep(0.001)

    thread = threading.Thread(target=beat)
    thread.start()
    start = beats
    model.score([Ask(cache=model.open(), tokens=[1] * 690, num_logits=1)])
    during = beats - start
    done.set()
    thread.join()
    assert during >= 3


def test_threads_sleep_between_passes(loaded: Loaded) -> None:
    """An idle model uses no processor time."""
    model = loaded("llama", "F32", threads=4)
    model.score([Ask(cache=model.open(), tokens=[1, 2, 3])])
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1


def test_physical_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one, never more than this process may use, and a container's share counts."""
    allowed = len(os.sched_getaffinity(0))
    assert 1 <= physical_cores() <= allowed
    monkeypatch.setattr(native, "_quota", lambda: 1)
    assert physical_cores() == 1


def test_core_refuses_what_would_read_beyond(loaded: Loaded, written: Written) -> None:
    """The core checks asks itself, whoever calls it."""
    model = loaded("llama", "F32").core
    other = NativeModel.load(written("llama").path).core
    good = model.open()
    cache = model.open()
    for ask, said in [
        ((cache, [], None, 0), "`tokens`"),
        ((cache, [VOCAB], None, 1), "vocabulary"),
        ((cache, [-1], None, 1), "vocabulary"),
        ((cache, [1 << 40], None, 1), "`tokens`"),
        ((cache, [1], None, 2), "`num_logits`"),
        ((cache, [1], None, -1), "`num_logits`"),
        ((cache, [1, 2], [-1], 1), "`parents`"),
        ((cache, [1, 2], [-1, 1], 1), "`parents`"),
        ((cache, [1], [], 1), "`parents`"),
        ((cache, [1] * (CONTEXT + 1), None, 1), "context"),
        ((good, [1], None, 1), "twice"),
        ((other.open(), [1], None, 1), "must come from open"),
    ]:
        with pytest.raises(ValueError, match=said):
            model.score([(good, [1], None, 1), ask])
        assert (good.length, cache.length) == (0, 0)
    with pytest.raises(ValueError, match="`feature_layers`"):
        model.score([(good, [1], None, 1)], [3])
    with pytest.raises(TypeError):
        model.score([(good, ["a"], None, 1)])
    with pytest.raises(ValueError, match="`length`"):
        good.rewind(1)
    with pytest.raises(ValueError, match="`path`"):
        good.keep([0])
