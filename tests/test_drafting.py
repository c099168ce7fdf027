"""Drafters by name: what may be said, what it means, and what is refused."""

from __future__ import annotations

import pytest

from headstart.drafting import build, parse
from headstart.errors import OptionError, VocabularyMismatchError
from tests.decode.loops import random_model

MODELS = {"a.gguf": random_model(1), "b+c.gguf": random_model(2), "wide": random_model(3, 5)}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("none", [("none", "")]),
        ("auto", [("auto", "")]),
        ("suffix", [("suffix", "")]),
        ("model:a.gguf", [("model", "a.gguf")]),
        ("ngram+model:a.gguf", [("ngram", ""), ("model", "a.gguf")]),
        ("suffix+ngram+model:b+c.gguf", [("suffix", ""), ("ngram", ""), ("model", "b+c.gguf")]),
        ("model:b+c.gguf+suffix", [("model", "b+c.gguf"), ("suffix", "")]),
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
    assert build(parse(name), 3, MODELS).name == name
    assert build(parse("auto"), 3, {}).name == "ngram"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ngrm", {}, "`drafter` must be one of none, .* got 'ngrm'; did you mean 'ngram'"),
        ("", {}, "`drafter` must be one of .* got ''"),
        ("ngram+", {}, "got 'ngram"),
        ("ngram+sufix", {}, "'ngram.sufix'"),
        ("+ngram", {}, "'.ngram'"),
        ("model:", {}, "model: needs a reference after the colon, e.g. model:smollm2"),
        ("ngram+none", {}, "none cannot be combined"),
        ("ngram", {"memory": 100}, "`memory` is for the drafter suffix"),
        ("suffix", {"memory": -1}, "`memory` must be .* got -1"),
        ("suffix", {"memory": 1}, "`memory` must be .* got 1"),
        ("suffix", {"memory": 2.5}, "`memory` must be .* got 2.5"),
        ("suffix", {"memory": True}, "`memory` must be .* got True"),
    ],
)
def test_names_and_options_that_are_refused(name, options, words) -> None:
    """By name, with the value and a way out; an option that nothing would use is an error."""
    with pytest.raises(OptionError, match=words):
        parse(name, **options)


def test_memory_reaches_the_drafter() -> None:
    """Of a combined drafter too."""
    assert parse("suffix", memory=100).memory == 100
    assert build(parse("suffix", memory=100), 3, {})._memory.automata
    assert build(parse("suffix+model:a.gguf", memory=100), 3, MODELS)._drafters[0]._memory.automata
    assert not build(parse("suffix"), 3, {})._memory.automata


def test_models_that_do_not_fit_are_refused() -> None:
    """No model by that reference (a target without files), and a model with fewer rows than the target."""
    with pytest.raises(OptionError, match="model:x needs a target given by name or path"):
        build(parse("ngram+model:x"), 3, {})
    with pytest.raises(VocabularyMismatchError, match="rows for 3 tokens, the target for 5"):
        build(parse("model:a.gguf"), 5, MODELS)
    assert build(parse("model:wide"), 3, MODELS).name == "model:wide"
