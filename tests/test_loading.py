"""`load`: what is found, what is shared, and one line for everything that cannot be had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headstart
from headstart import fetch
from headstart.errors import FetchError, HeadstartError, ModelError, OptionError, VocabularyMismatchError
from headstart.loading import load_many
from headstart.models.native import NativeModel
from headstart.text import Tokenizer
from tests.generation.tiny import folder, tiny

TABLE = headstart.TableModel(np.full((3, 3), 1 / 3))
ASKED = {"engine": "transformers", "dtype": "float32", "device": "cpu", "threads": 1}


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which models are read into memory while a test runs."""
    from headstart.models.transformers import TransformersModel

    read: list[str] = []
    load = TransformersModel.load.__func__  # type: ignore[attr-defined]

    def counted(cls: Any, ref: Any, **options: Any) -> Any:
        read.append(Path(ref).name)
        return load(cls, ref, **options)

    monkeypatch.setattr(TransformersModel, "load", classmethod(counted))
    return read


def refused(kind: type[HeadstartError], *words: str, target: Any = None, **options: Any) -> None:
    """`load` raises exactly `kind`, in one line with these words."""
    with pytest.raises(HeadstartError) as caught:
        headstart.load(folder("target") if target is None else target, **options)
    assert type(caught.value) is kind, caught.value
    message = str(caught.value)
    assert len(message) < 500
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_model_that_drafts_for_itself_is_held_once(loads: list[str], tmp_path: Path) -> None:
    """The same folder as target and drafter, by whatever path, is one object read once, and its drafts are always right."""
    other_path = tmp_path / "link"
    other_path.symlink_to(folder("target"))
    for ref in (folder("target"), other_path):
        loads.clear()
        llm = headstart.load(folder("target"), drafter=f"model:{ref}", **ASKED)
        assert len(loads) == 1
        assert llm.drafter._model is llm.model  # type: ignore[attr-defined]
        assert llm.generate("hi", max_tokens=30, gamma=4).stats.acceptance_rate == 1.0


def test_smollm2_as_its_own_drafter_is_held_once(loads: list[str], smollm2_path: Path) -> None:
    """By name, by model:name and by path it is one file, read once."""
    llm = headstart.load("smollm2", drafter=f"model:{smollm2_path}", **ASKED)
    assert loads == [smollm2_path.name]
    assert llm.drafter._model is llm.model  # type: ignore[attr-defined]


def test_with_drafter_shares_the_weights() -> None:
    """A model with and without a drafter is one model in memory."""
    llm = tiny()
    plain = llm.with_drafter(headstart.NoDrafter())
    assert (plain.model, plain.tokenizer, plain.loaded) == (llm.model, llm.tokenizer, llm.loaded)
    assert (plain.drafter.name, llm.drafter.name) == ("none", "ngram")


def test_another_model_as_drafter_changes_no_token(loads: list[str]) -> None:
    """A relative that is sometimes wrong drafts; greedy tokens stay the target's own."""
    llm = headstart.load(folder("target"), drafter=f"model:{folder('drafter')}", **ASKED)
    assert loads == ["target", "drafter"]
    out = llm.generate("hi", max_tokens=60, gamma=4)
    assert out.token_ids == tiny(drafter="none").generate("hi", max_tokens=60).token_ids
    assert 0 < (out.stats.acceptance_rate or 0) < 1, "the drafter is never, or always, right: this proves nothing"


def test_a_padded_vocabulary_works_and_padding_is_never_emitted() -> None:
    """Rows wider than the tokenizer, on either side, draft and are drafted for; ids without a token cannot come out."""
    size = Tokenizer.from_folder(folder("target")).vocab_size
    for target, drafter in [("padded", "target"), ("target", "padded"), ("padded", "padded")]:
        llm = headstart.load(folder(target), drafter=f"model:{folder(drafter)}", **ASKED)
        assert llm.vocab_size == size
        out = llm.generate("hi", max_tokens=40, temperature=50.0, seed=1, logprobs=400)
        assert max(out.token_ids) < size
        assert max(token for at in out.logprobs for token, _ in at.top) < size


def test_other_tokens_by_the_same_ids_are_refused_before_weights_are_read(loads: list[str]) -> None:
    """The first tokens that differ are named: same size with two exchanged, and another tokenizer altogether."""
    refused(VocabularyMismatchError, "300", "301", "ngram", drafter=f"model:{folder('swapped')}")
    refused(VocabularyMismatchError, "token 0 is '!'", "ngram", drafter="model:smollm2", offline=True)
    assert loads == []


def test_a_drafter_with_fewer_rows_than_the_target_is_refused() -> None:
    """It could not be told what the target says."""
    refused(VocabularyMismatchError, "298", "308", "ngram", drafter=f"model:{folder('narrow')}", **ASKED)


def test_the_context_asked_for_is_the_targets() -> None:
    """A drafter that holds less is no reason to refuse; it stops drafting, the text goes on."""
    llm = headstart.load(folder("target"), drafter=f"model:{folder('short')}", context=64, **ASKED)
    out = llm.generate("hi", max_tokens=200, gamma=4)
    assert (len(out.token_ids), out.finish_reason) == (64 - out.num_prompt_tokens, "length")
    assert out.rounds[0].num_drafted == 4
    assert out.rounds[-1].num_drafted == 0
    assert (llm.loaded["context"], llm.model.context_limit) == (64, 64)
    assert out.token_ids == tiny(drafter="none").generate("hi", max_tokens=len(out.token_ids)).token_ids


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "native2"}, ["engine", "native2", "transformers"]),
        ({"engine": None}, ["engine", "None"]),
        ({"dtype": "float64"}, ["dtype", "float64", "float32"]),
        ({"dtype": None}, ["dtype", "None"]),
        ({"device": "gpu"}, ["device", "gpu", "cuda"]),
        ({"device": None}, ["device", "None"]),
        ({"device": "cuda:99"}, ["device", "cuda:99", "cpu"]),
        ({"threads": 0}, ["threads", "0", "1"]),
        ({"threads": 10**6}, ["threads", "1000000", "1024"]),
        ({"threads": 1.5}, ["threads", "1.5"]),
        ({"threads": "2"}, ["threads", "'2'"]),
        ({"threads": True}, ["threads", "True"]),
        ({"context": 4}, ["context", "4", "8"]),
        ({"context": 10**6}, ["context", "1000000", "256"]),
        ({"context": "20"}, ["context", "'20'"]),
        ({"drafter": "ngrm"}, ["drafter", "'ngrm'", "did you mean 'ngram'"]),
        ({"drafter": "model:"}, ["drafter", "model:smollm2"]),
        ({"drafter": ""}, ["drafter", "''"]),
        ({"drafter": None}, ["drafter", "None"]),
        ({"drafter": TABLE}, ["drafter", "propose"]),
        ({"drafter": headstart.NoDrafter}, ["drafter", "propose"]),
        ({"target": ""}, ["target", "smollm2"]),
        ({"target": 3}, ["target", "3"]),
        ({"target": b"smollm2"}, ["target", "smollm2"]),
        ({"target": TABLE, "threads": 2}, ["threads", "2"]),
        ({"target": TABLE, "engine": "transformers"}, ["engine", "transformers"]),
        ({"target": TABLE, "drafter": "model:smollm2"}, ["drafter", "model:smollm2"]),
    ],
    ids=str,
)
def test_options_that_cannot_be_honoured(options: dict[str, Any], words: list[str]) -> None:
    """Each is refused by name, with the value and what may be given."""
    refused(OptionError, *words, **options)


def test_wrong_options_are_refused_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody waits for 98 MB to be told of a typing error."""
    monkeypatch.setenv("HEADSTART_MODELS", str(tmp_path))
    monkeypatch.setattr(fetch, "fetch", lambda *a, **b: pytest.fail("it was fetched"))
    for wrong in ({"dtype": "f32"}, {"threads": 0}, {"context": 0}, {"drafter": "modle:x"}, {"engine": "x"}):
        with pytest.raises(OptionError):
            headstart.load("smollm2", **wrong)  # type: ignore[arg-type]


def test_models_that_are_not_there(tmp_path: Path) -> None:
    """Each says what was looked for and what can be named instead."""
    for ref in ("./no-such.gguf", "/no/such/folder", "a/b/c", str(tmp_path / "x\0y"), "x" * 5000):
        refused(ModelError, "smollm2", ".gguf", target=ref)
    refused(ModelError, "did you mean 'smollm2'", target="smolm2")
    refused(ModelError, "no-such", target=folder("target"), drafter="model:./no-such.gguf")
    refused(ModelError, "--offline", target="nobody/nothing", offline=True)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    """It says so, and names the GGUF files that lie in it."""
    refused(ModelError, "no model in the folder", "config.json", "no GGUF file", target=tmp_path)
    (tmp_path / "a.gguf").write_bytes(b"")
    refused(ModelError, "no model in the folder", "a.gguf", target=tmp_path)


def test_files_that_are_no_models(tmp_path: Path, smollm2_path: Path) -> None:
    """A text, an empty file and a model cut short, all named .gguf; and a text under its own name."""
    text, empty, short, early = (tmp_path / f"{name}.gguf" for name in ("text", "empty", "short", "early"))
    text.write_text("hello")
    empty.touch()
    with smollm2_path.open("rb") as whole:
        early.write_bytes(whole.read(10_000))
        short.write_bytes(early.read_bytes() + whole.read(20_000_000))
    for path in (text, empty, short, early):
        refused(ModelError, path.name, "GGUF", target=path, engine="transformers")
    refused(ModelError, "readme.txt", ".gguf", target=_written(tmp_path / "readme.txt"))


def _written(path: Path) -> Path:
    path.write_text("hello")
    return path


def test_offline_fetches_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A known model that is not here is named with the command that fetches it."""
    monkeypatch.setenv("HEADSTART_MODELS", str(tmp_path / "none"))
    refused(FetchError, "smollm2", "--offline", "headstart models fetch", target="smollm2", offline=True)
    assert not (tmp_path / "none").exists()


def test_a_models_folder_that_cannot_be_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """HEADSTART_MODELS that is a file, or lies where nothing can be written: the variable is named."""
    for place in (_written(tmp_path / "file"), Path("/proc/headstart")):
        monkeypatch.setenv("HEADSTART_MODELS", str(place))
        refused(FetchError, "HEADSTART_MODELS", str(place), target="smollm2")


# ---- the native engine ---------------------------------------------------------------------------------------------------------


def test_a_folder_on_the_native_engine(loads: list[str]) -> None:
    """Asked for by name or by --quantize, and by nothing else: auto leaves folders to transformers."""
    assert headstart.load(folder("wide"), dtype="float32").engine == "transformers"
    loads.clear()
    llm = headstart.load(folder("wide"), drafter=f"model:{folder('wide-drafter')}", engine="native", threads=1)
    assert (llm.engine, loads, llm.loaded["dtype"], llm.loaded["quantize"]) == ("native", [], "F32", None)
    out = llm.generate("hi", max_tokens=40, gamma=4)
    assert out.token_ids == llm.with_drafter(headstart.NoDrafter()).generate("hi", max_tokens=40).token_ids
    assert (out.stats.acceptance_rate or 0) > 0
    assert out.token_ids == headstart.load(folder("wide"), drafter="none", **ASKED).generate("hi", max_tokens=40).token_ids


def test_what_is_held_is_reported() -> None:
    """Weights, cache a token and for the whole context, and how weights were changed: with the options of every result."""
    llm = headstart.load(folder("wide"), quantize="q8_0", context=100, threads=1)
    assert (llm.engine, llm.loaded["quantize"], llm.loaded["context"]) == ("native", "q8_0", 100)
    assert llm.loaded["weight_bytes"] == llm.model.weight_bytes  # type: ignore[attr-defined]
    assert llm.loaded["cache_bytes_per_token"] == 2 * 2 * 2 * 2 * 16
    assert llm.loaded["cache_bytes"] == 100 * llm.loaded["cache_bytes_per_token"]
    assert llm.generate("hi", max_tokens=2).to_json()["options"]["quantize"] == "q8_0"
    whole = headstart.load(folder("wide"), engine="native", threads=1)
    assert whole.loaded["weight_bytes"] > 2 * llm.loaded["weight_bytes"] - (1 << 17)


def test_a_draft_in_fewer_bits(smollm2_path: Path) -> None:
    """Only the drafting copy of the model changes: it is smaller, it drafts a little differently, the text stays the same."""
    plain, drafted = load_many(smollm2_path, ["none", f"model:{smollm2_path}"], draft_quantize="q4_0", threads=1)
    llm, model, target = drafted.llm, drafted.model, plain.llm.model
    assert isinstance(model, NativeModel)
    assert isinstance(target, NativeModel)
    assert (model.quantize, target.quantize, llm.model) == ("q4_0", None, target)
    assert model.weight_bytes < target.weight_bytes
    out = llm.generate("Name three colours.", max_tokens=24, gamma=3)
    assert out.token_ids == plain.llm.generate("Name three colours.", max_tokens=24).token_ids
    assert (out.stats.acceptance_rate or 0) > 0.3


def test_many_drafters_share_what_they_can_use() -> None:
    """Options go to the drafters that have a use for them; a model named twice is in memory once."""
    wide, other = folder("wide"), f"model:{folder('wide-drafter')}"
    options: dict[str, Any] = {"engine": "native", "threads": 1}
    found = load_many(wide, ["none", "suffix", other, f"suffix+{other}"], memory=50, draft_quantize="q8_0", **options)
    assert [each.model is None for each in found] == [True, True, False, True]
    assert isinstance(found[2].model, NativeModel)
    assert (found[2].model.quantize, found[0].llm.loaded["quantize"]) == ("q8_0", None)
    assert [each.costs_key["draft_quantize"] for each in found] == [None, None, "q8_0", "q8_0"]
    with pytest.raises(OptionError, match="`memory`"):
        load_many(wide, ["none", other], memory=50, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"quantize": "q4_1"}, ["`quantize`", "q8_0", "q4_0", "'q4_1'"]),
        ({"draft_quantize": "q5"}, ["`draft_quantize`", "q8_0", "q4_0", "'q5'"]),
        ({"draft_quantize": "q4_0", "drafter": "ngram"}, ["`draft_quantize`", "ngram", "model:REF"]),
        ({"draft_quantize": "q4_0", "drafter": "skip:1"}, ["`draft_quantize`", "skip:1", "model:REF"]),
        ({"draft_quantize": "q4_0", "drafter": "model:x", "engine": "transformers"}, ["`draft_quantize`", "native"]),
        ({"quantize": "q8"}, ["`quantize`", "did you mean 'q8_0'"]),
        ({"quantize": "q8_0", "engine": "transformers"}, ["`quantize`", "transformers", "--engine native"]),
        ({"quantize": "q8_0", "target": "smollm2"}, ["`quantize`", "smollm2", "GGUF"]),
        ({"quantize": "q8_0", "target": TABLE}, ["`quantize`", "q8_0"]),
        ({"quantize": "q8_0", "dtype": "float32"}, ["`dtype`", "float32"]),
        ({"engine": "native", "device": "cuda"}, ["`device`", "cuda"]),
        ({"engine": "native", "context": 1000}, ["`context`", "256", "1000"]),
    ],
    ids=str,
)
def test_what_the_native_engine_cannot_honour(options: dict[str, Any], words: list[str]) -> None:
    """Named, with the value and the way out."""
    refused(OptionError, *words, **{"target": folder("wide")} | options)


def test_folders_the_native_engine_does_not_know() -> None:
    """The width that does not fit is named, with the folder."""
    refused(ModelError, str(folder("target")), "multiples of 32", engine="native")


def test_a_context_that_cannot_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Target, drafter and their caches are counted before weights are read; a context nobody asked for is not."""
    from headstart.models import memory

    pair = {"drafter": f"model:{folder('wide-drafter')}", "engine": "native", "threads": 1}
    llm = headstart.load(folder("wide"), **pair, context=200)
    both = 2 * (llm.loaded["weight_bytes"] + llm.loaded["cache_bytes"])
    monkeypatch.setattr(memory, "available_memory", lambda: both)
    headstart.load(folder("wide"), **pair, context=200)
    monkeypatch.setattr(memory, "available_memory", lambda: both - 1)
    refused(OptionError, "`context` 200", "drafter", "102 kB", target=folder("wide"), **pair, context=200)
    headstart.load(folder("wide"), **pair, context=199)
    headstart.load(folder("wide"), **pair)
    monkeypatch.setattr(memory, "available_memory", lambda: llm.loaded["weight_bytes"])
    refused(ModelError, "drafter", "for weights", target=folder("wide"), **pair)


def test_without_transformers_a_folder_says_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing falls back to the other engine: the pip line is named, and the engine that would do."""
    import sys

    monkeypatch.delitem(sys.modules, "headstart.models.transformers", raising=False)
    monkeypatch.delitem(sys.modules, "headstart.models.torch_extra", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(headstart.errors.MissingExtraError, "`torch`", "pip install", "--engine native", target=folder("wide"))
