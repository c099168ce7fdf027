"""Who guesses: one drafter a file, all behind `interfaces.Drafter`."""

from __future__ import annotations

from headstart.drafters.model import ModelDrafter
from headstart.drafters.ngram import NGramDrafter
from headstart.drafters.none import NoDrafter

__all__ = ["ModelDrafter", "NGramDrafter", "NoDrafter"]
