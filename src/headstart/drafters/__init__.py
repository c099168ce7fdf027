"""Who guesses: one drafter a file, all behind `interfaces.Drafter`."""

from __future__ import annotations

from headstart.drafters.combined import CombinedDrafter
from headstart.drafters.cross import CrossDrafter
from headstart.drafters.eagle import EagleDrafter
from headstart.drafters.medusa import MedusaDrafter
from headstart.drafters.model import ModelDrafter
from headstart.drafters.ngram import NGramDrafter
from headstart.drafters.none import NoDrafter
from headstart.drafters.skip import SkipDrafter
from headstart.drafters.suffix import SuffixDrafter

__all__ = [
    "CombinedDrafter",
    "CrossDrafter",
    "EagleDrafter",
    "MedusaDrafter",
    "ModelDrafter",
    "NGramDrafter",
    "NoDrafter",
    "SkipDrafter",
    "SuffixDrafter",
]
