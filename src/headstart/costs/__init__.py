"""What passes and rounds cost on this machine: measured, and kept for the next time."""

from __future__ import annotations

from headstart.costs.pacer import Pacer
from headstart.costs.passes import PassCosts, measure_bandwidth, measure_passes
from headstart.costs.rounds import MeasuredRounds, measure_rounds
from headstart.costs.store import costs_folder, find_costs, find_past, keep_costs, keep_past

__all__ = [
    "MeasuredRounds",
    "Pacer",
    "PassCosts",
    "costs_folder",
    "find_costs",
    "find_past",
    "keep_costs",
    "keep_past",
    "measure_bandwidth",
    "measure_passes",
    "measure_rounds",
]
