"""Drafters by name: what may be said, what it means, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.drafting import Held, build, parse, parse_all
from headstart.errors import OptionError, VocabularyMismatchError
from headstart.text import Tokenizer
from tests.decode.loops import random_model
from tests.drafters.parts import Cut, Early
from tests.generation.tiny import folder

TARGET = Held(model=random_model(5))
OTHERS = {"a.gguf": Held(model=random_model(1)), "b+c.gguf": Held(model=random_model(2)), "wide": Held(model=random_model(3, 5))}


class Dividing:
    """A table model that says it has four layers, and remembers what was asked of it."""

    def __init__(self) -> None:
        self._model = random_model(5, 400)
        self.vocab_size, self.context_limit, self.num_layers = 400, 100, 4
        self.open, self.score = self._model.open, self._model.score
        self.asked: list[dict] = []

    def part(self, *, layers=None, ids=None):
        self.asked.append({"layers": layers, "ids": ids})
        model = self._model if layers is None else Early(self._model)
        return model if ids is None else Cut(model, ids)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(folder("target"))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("none", [("none", "")]),
        ("auto", [("auto", "")]),
        ("suffix", [("suffix", "")]),
        ("model:a.gguf", [("model", "a.gguf")]),
        ("cross:a.gguf", [("cross", "a.gguf")]),
        ("skip:12", [("skip", "12")]),
        ("ngram+model:a.gguf", [("ngram", ""), ("model", "a.gguf")]),
        ("suffix+ngram+model:b+c.gguf", [("suffix", ""), ("ngram", ""), ("model", "b+c.gguf")]),
        ("model:b+c.gguf+suffix", [("model", "b+c.gguf"), ("suffix", "")]),
        ("suffix+skip:3+cross:x", [("suffix", ""), ("skip", "3"), ("cross", "x")]),
        ("model:C:/x/none+more+model:y", [("model", "C:/x/none+more"), ("model", "y")]),
        ("model:ngram+notes", [("model", "ngram+notes")]),
    ],
)
def test_names_and_their_parts(name, parts) -> None:
    """A plus sign divides where a drafter begins behind it; the name stays as it was written."""
    wish = parse(name)
    assert [(part.kind, part.argument) for part in wish.parts] == parts
    assert wish.name == name


@pytest.mark.parametrize(
    "name", ["none", "ngram", "suffix", "model:a.gguf", "model:b+c.gguf", "ngram+model:a.gguf", "suffix+ngram+model:b+c.gguf"]
)
def test_what_is_built_goes_by_its_name(name) -> None:
    """Results name the drafter as it was asked for; `auto` is what it chose."""
    assert build(parse(name), TARGET, OTHERS).name == name
    assert build(parse("auto"), TARGET, {}).name == "suffix"


def test_layer_skip_is_made_from_the_target() -> None:
    """The first layers of the target itself; at least one less than it has."""
    target = Dividing()
    assert build(parse("suffix+skip:3"), Held(model=target), {}).name == "suffix+skip:3"
    assert target.asked == [{"layers": 3, "ids": None}]
    with pytest.raises(OptionError, match="skip:4 must skip at least one of the target's layers; use skip:3 or less"):
        build(parse("skip:4"), Held(model=target), {})
    with pytest.raises(OptionError, match="skip:1 needs a target that can stop after some layers"):
        build(parse("skip:1"), TARGET, {})


def test_draft_vocab_cuts_whatever_runs_a_model(tokenizer: Tokenizer) -> None:
    """The most frequent tokens and the special ones, of the model that drafts."""
    kept = tokenizer.frequent(300)
    assert len(kept) == 300 + len(tokenizer.special_ids)
    for name in ("model:x", "cross:x", "skip:2", "ngram+model:x"):
        target, other = Dividing(), Dividing()
        held = Held(model=target, tokenizer=tokenizer)
        build(parse(name, draft_vocab=300), held, {"x": Held(model=other, tokenizer=tokenizer)})
        asked = target.asked if "skip" in name else other.asked
        assert asked == [{"layers": 2 if "skip" in name else None, "ids": kept}]
        assert len(target.asked) + len(other.asked) == 1


def test_across_vocabularies(tokenizer: Tokenizer) -> None:
    """Tokens of the same text are paired, whatever their numbers."""
    swapped = Tokenizer.from_folder(folder("swapped"))
    held = Held(model=Dividing(), tokenizer=tokenizer)
    drafter = build(parse("cross:x"), held, {"x": Held(model=Dividing(), tokenizer=swapped)})
    pairs = dict(zip(drafter._bridge.target_ids.tolist(), drafter._bridge.drafter_ids.tolist(), strict=True))
    assert (pairs[300], pairs[301], pairs[299]) == (301, 300, 299)
    with pytest.raises(OptionError, match="cross:x needs a target and a drafter with tokenizers"):
        build(parse("cross:x"), TARGET, {"x": Held(model=random_model(1))})


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ngrm", {}, "`drafter` must be one of none, .* got 'ngrm'; did you mean 'ngram'"),
        ("", {}, "`drafter` must be one of .* got ''"),
        ("ngram+", {}, "got 'ngram"),
        ("ngram+sufix", {}, "'ngram.sufix'"),
        ("+ngram", {}, "'.ngram'"),
        ("model:", {}, "model: needs a reference after the colon, e.g. model:smollm2"),
        ("cross:", {}, "cross: needs a reference after the colon, e.g. cross:smollm2"),
        ("skip:", {}, "skip: needs a number of layers after the colon, e.g. skip:8"),
        ("skip:0", {}, "skip: needs a number of layers .* got 'skip:0'"),
        ("skip:-2", {}, "skip: needs a number of layers .* got 'skip:-2'"),
        ("skip:2.5", {}, "skip: needs a number of layers"),
        ("skip:٣", {}, "skip: needs a number of layers"),
        ("ngram+none", {}, "none cannot be combined"),
        ("ngram", {"memory": 100}, "`memory` is for the drafter suffix"),
        ("suffix", {"memory": -1}, "`memory` must be .* got -1"),
        ("suffix", {"memory": 1}, "`memory` must be .* got 1"),
        ("suffix", {"memory": 2.5}, "`memory` must be .* got 2.5"),
        ("suffix", {"memory": True}, "`memory` must be .* got True"),
        ("suffix", {"draft_vocab": 100}, "`draft_vocab` is for drafters that run a model"),
        ("model:x", {"draft_vocab": 0}, "`draft_vocab` must be .* got 0"),
        ("model:x", {"draft_vocab": "9"}, "`draft_vocab` must be .* got '9'"),
    ],
)
def test_names_and_options_that_are_refused(name, options, words) -> None:
    """By name, with the value and a way out; an option that nothing would use is an error."""
    with pytest.raises(OptionError, match=words):
        parse(name, **options)


def test_memory_reaches_the_drafter() -> None:
    """Of a combined drafter too."""
    assert parse("suffix", memory=np.int64(100)).memory == 100
    assert build(parse("suffix", memory=100), TARGET, {})._memory.automata
    assert build(parse("suffix+model:a.gguf", memory=100), TARGET, OTHERS).parts[0]._memory.automata
    assert not build(parse("suffix"), TARGET, {})._memory.automata


def test_models_that_do_not_fit_are_refused() -> None:
    """No model by that reference, one with fewer rows than the target, and one whose vocabulary cannot be cut."""
    with pytest.raises(OptionError, match="model:x needs a target given by name or path"):
        build(parse("ngram+model:x"), TARGET, {})
    with pytest.raises(VocabularyMismatchError, match="rows for 3 tokens, the target for 5"):
        build(parse("model:a.gguf"), OTHERS["wide"], OTHERS)
    assert build(parse("model:wide"), TARGET, OTHERS).name == "model:wide"
    with pytest.raises(OptionError, match="`draft_vocab` needs a model with a tokenizer"):
        build(parse("model:wide", draft_vocab=2), TARGET, OTHERS)


def test_a_vocabulary_that_cannot_be_cut_is_refused(tokenizer: Tokenizer) -> None:
    """A model without parts."""
    whole = Held(model=random_model(1, 400), tokenizer=tokenizer)
    with pytest.raises(OptionError, match="`draft_vocab` cannot cut the vocabulary of model:x"):
        build(parse("model:x", draft_vocab=300), whole, {"x": whole})


def test_options_of_several_drafters() -> None:
    """Each drafter gets what it has a use for; what none of them uses is refused."""
    names = ["none", "suffix", "model:a", "skip:2", "eagle:b", "medusa:c"]
    wishes = parse_all(names, memory=9, draft_vocab=20, draft_quantize="q4_0")
    got = [(wish.memory, wish.draft_vocab, wish.draft_quantize) for wish in wishes]
    assert got == [(0, None, None), (9, None, None), (0, 20, "q4_0"), (0, 20, None), (0, None, "q4_0"), (0, None, "q4_0")]
    for name, value in (("memory", 9), ("draft_vocab", 9), ("draft_quantize", "q4_0")):
        with pytest.raises(OptionError, match=f"`{name}`"):
            parse_all(["none", "ngram"], **{name: value})
