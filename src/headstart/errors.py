"""Every error a user can meet.

    HeadstartError                    anything below; the command line prints it as one line and exits with 1
    ├── OptionError                   an option, or a mix of options, that cannot be honoured (exit 2; also a ValueError)
    ├── ModelError                    a model that cannot be found, read or used as asked
    │   ├── MissingExtraError         an optional dependency is not installed; carries its pip line
    │   └── VocabularyMismatchError   target and drafter do not share a vocabulary
    ├── InputError                    a prompt, file or message that cannot be used
    ├── RowError                      logits no token can be drawn from, at a position that was visited
    └── FetchError                    a model file could not be fetched whole

Each message names the parameter, shows the value and says the way out. `assert` is for our own bugs only.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "FetchError",
    "HeadstartError",
    "InputError",
    "MissingExtraError",
    "ModelError",
    "OptionError",
    "RowError",
    "VocabularyMismatchError",
    "did_you_mean",
]


class HeadstartError(Exception):
    """Base of every error Headstart raises on purpose."""

    exit_code = 1


class OptionError(HeadstartError, ValueError):
    """An option, or a combination of options, that cannot be honoured exactly."""

    exit_code = 2


class ModelError(HeadstartError):
    """A model that cannot be found, read or used as asked."""


class MissingExtraError(ModelError):
    """A feature whose optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str, otherwise: str = "") -> None:
        """`otherwise`: another way out, as a half-sentence after the pip line."""
        super().__init__(
            f"{purpose} needs the package `{package}`, which is not installed: pip install 'headstart[{extra}]'{otherwise}"
        )
        self.package = package


class VocabularyMismatchError(ModelError):
    """The drafter's token ids do not mean what the target's mean."""


class InputError(HeadstartError):
    """A prompt, message or file that cannot be used."""


class RowError(HeadstartError):
    """Logits that leave no token to draw: NaN, all −inf, everything banned."""


class FetchError(HeadstartError):
    """A model file could not be fetched whole and unaltered."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A ready half-sentence, `; did you mean 'x'?`, or an empty string when nothing is close."""
    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
