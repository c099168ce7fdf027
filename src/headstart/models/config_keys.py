"""The keys of a config.json, taken one by one with a check; at the end, what nobody took is refused by name.

Does not know what keys mean. A key whose value is null counts as absent, as everywhere in transformers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from headstart.errors import ModelError

__all__ = ["Keys"]


class Keys:
    """A JSON object out of a file, and which of its keys were asked for."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        """`source` is how messages call it, e.g. the path of the file."""
        self._values = {key: value for key, value in values.items() if value is not None}
        self._source = source
        self._taken: set[str] = set()

    def names(self) -> list[str]:
        """Keys with a value."""
        return list(self._values)

    def whole(self, key: str, otherwise: int | None, *, least: int = 1, most: int = 2**31 - 1) -> int:
        """A whole number from `least` to `most`. `otherwise` None: it must be there."""
        value = self._get(key, otherwise)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self._wrong(key, value, f"a whole number from {least} to {most}")
        return value

    def real(self, key: str, otherwise: float | None, *, least: float = 0.0) -> float:
        """A positive number, `least` or more, under 10³⁰. `otherwise` None: it must be there."""
        value = self._get(key, otherwise)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30 or value < least:
            self._wrong(key, value, f"a number, {least:g} or more" if least else "a positive number")
        return float(value)

    def text(self, key: str, otherwise: str | None) -> str:
        """A text. `otherwise` None: it must be there."""
        value = self._get(key, otherwise)
        if not isinstance(value, str):
            self._wrong(key, value, "a text")
        return value

    def truth(self, key: str, otherwise: bool) -> bool:
        """True or false."""
        value = self._get(key, otherwise)
        if not isinstance(value, bool):
            self._wrong(key, value, "true or false")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of texts; empty where it is not there."""
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._wrong(key, value, "a list of texts")
        return value

    def table(self, key: str) -> Keys | None:
        """An object within this one; None where it is not there or empty."""
        value = self._get(key, {})
        if not isinstance(value, dict):
            self._wrong(key, value, "an object")
        return Keys(value, f"{self._source}: {key}") if value else None

    def only(self, key: str, *allowed: Any) -> None:
        """A key that may be absent, or have one of these values and no other."""
        value = self._get(key, allowed[0])
        if not any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in allowed):
            self._wrong(key, value, " or ".join(repr(other) for other in allowed))

    def finish(self, known: Iterable[str] = ()) -> None:
        """Raise ModelError if there is a key that nobody took and that is not in `known`."""
        left = sorted(set(self._values) - self._taken - set(known))
        if left:
            self.refuse(f"{', '.join(repr(key) for key in left):.200}, which the native engine does not know")

    def refuse(self, what: str) -> NoReturn:
        """Raise ModelError: the source has `what`."""
        raise ModelError(f"{self._source} has {what}; use --engine transformers")

    def _get(self, key: str, otherwise: Any) -> Any:
        self._taken.add(key)
        value = self._values.get(key, otherwise)
        if value is None:
            raise ModelError(f"{self._source} has no {key!r}, which the native engine needs; is it whole?")
        return value

    def _wrong(self, key: str, value: Any, expected: str) -> NoReturn:
        self.refuse(f"{key!r} {value!r:.200}, and the native engine knows {expected}")
