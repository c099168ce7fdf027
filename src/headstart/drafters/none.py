"""No draft at all: every round is plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from headstart.drafts import NOTHING
from headstart.interfaces import Context, Draws
from headstart.records import Draft
from headstart.rows import FloatArray

__all__ = ["NoDrafter"]


@final
class NoDrafter:
    """Proposes nothing and remembers nothing."""

    name = "none"

    def open(self, contexts: Sequence[Context]) -> list[None]:
        """One empty state a sequence."""
        return [None] * len(contexts)

    def propose(
        self, states: Sequence[None], contexts: Sequence[Context], budgets: Sequence[int], draws: Sequence[Draws]
    ) -> list[Draft]:
        """Empty drafts."""
        return [NOTHING] * len(contexts)

    def commit(self, state: None, tokens: Sequence[int], features: FloatArray | None) -> None:
        """Nothing to do."""
