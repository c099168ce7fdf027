"""Prompts: the built-in set is whole and mixed, and files say where they are wrong."""

from __future__ import annotations

import pytest

from headstart.errors import InputError, OptionError
from headstart.prompts import CATEGORIES, OWN, Prompt, builtin_prompts, read_prompts


@pytest.mark.parametrize("category", CATEGORIES)
def test_every_category_has_at_least_eight_prompts(category) -> None:
    """All of them different."""
    texts = [prompt.text for prompt in builtin_prompts([category])]
    assert len(texts) == len(set(texts)) >= 8


@pytest.mark.parametrize(("category", "words"), [("edit", 60), ("summary", 80)])
def test_edit_and_summary_prompts_hold_their_text(category, words) -> None:
    """Something to copy from is what makes these categories what they are."""
    assert all(len(prompt.text.split()) >= words for prompt in builtin_prompts([category]))


def test_categories_and_numbers_are_chosen() -> None:
    """In the order asked for; wrong names are refused with the nearest right one."""
    assert [p.category for p in builtin_prompts(["prose", "code"], each=2)] == ["prose", "prose", "code", "code"]
    with pytest.raises(OptionError, match=r"`category` must be one of code.*; did you mean 'prose'\?"):
        builtin_prompts(["pose"])
    with pytest.raises(OptionError, match="`each` must be 1 or more, got 0"):
        builtin_prompts(each=0)


def test_text_files_are_split_at_dashes(tmp_path) -> None:
    """Blank lines inside a prompt stay, those around it and empty parts do not."""
    file = tmp_path / "mine.txt"
    file.write_text("one\n\nstill one\n\n---\n---\n  indented\n--- not a separator\n", encoding="utf-8")
    texts = ["one\n\nstill one", "  indented\n--- not a separator"]
    assert read_prompts(file) == [Prompt(text=text, category=OWN) for text in texts]


def test_json_lines(tmp_path) -> None:
    """Texts and objects."""
    file = tmp_path / "mine.jsonl"
    file.write_text('"hello"\n\n{"prompt": "a\\nb", "category": "chat", "id": 7}\n', encoding="utf-8")
    assert read_prompts(file) == [Prompt(text="hello", category=OWN), Prompt(text="a\nb", category="chat")]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "at least one prompt"),
        ("{oops\n", "line 1: not JSON"),
        ('"ok"\n3\n', 'line 2: must be a text or an object with "prompt"'),
        ('{"prompt": " "}\n', "line 1: `text` of a prompt must not be empty"),
        ('{"prompt": "x", "category": 3}\n', 'line 1: "category" must be a text'),
    ],
)
def test_wrong_files_say_where(tmp_path, content, complaint) -> None:
    """One line with the place and what is wrong."""
    file = tmp_path / "mine.jsonl"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=complaint):
        read_prompts(file)


def test_files_that_are_not_text(tmp_path) -> None:
    """Bytes that are not UTF-8."""
    file = tmp_path / "mine.txt"
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match="UTF-8"):
        read_prompts(file)
