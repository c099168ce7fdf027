"""Measurements of this machine: what a pass costs."""

from __future__ import annotations

from headstart.bench.costs import Costs, measure_costs

__all__ = ["Costs", "measure_costs"]
