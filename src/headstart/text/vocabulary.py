"""Whether two tokenizers mean the same by a token id, which a drafter and its target must."""

from __future__ import annotations

from headstart.errors import VocabularyMismatchError
from headstart.text.tokenizer import Tokenizer

__all__ = ["check_same_vocabulary", "vocabulary_difference"]


def vocabulary_difference(a: Tokenizer, b: Tokenizer, *, most: int = 3) -> list[tuple[int, str, str]]:
    """The first `most` ids that both have a token for, but not the same: (id, string in `a`, string in `b`).

    Ids that only one of them has are no difference: vocabularies are padded to round sizes."""
    different: list[tuple[int, str, str]] = []
    for token, (in_a, in_b) in enumerate(zip(a.tokens(), b.tokens(), strict=False)):
        if in_a is not None and in_b is not None and _plain(in_a) != _plain(in_b):
            different.append((token, in_a, in_b))
            if len(different) == most:
                break
    return different


def _plain(token: str) -> str:
    # GGUF files write the ▁ of tokens that users of the model defined as a space; tokenizer.json keeps it.
    return token.replace("▁", " ")


def check_same_vocabulary(target: Tokenizer, drafter: Tokenizer) -> None:
    """Raises VocabularyMismatchError, naming the first tokens that differ, unless ids mean the same to both."""
    different = vocabulary_difference(target, drafter)
    if different:
        named = ", ".join(f"{token} is {mine!r} to the target and {theirs!r} to the drafter" for token, mine, theirs in different)
        raise VocabularyMismatchError(
            f"`drafter` does not share the target's vocabulary: token {named}; "
            "use a drafter of the same model family, or --drafter ngram"
        )
