"""How long a draft should be: fixed by whoever asks, or found out while it runs."""

from __future__ import annotations

from headstart.schedule.adaptive import AdaptiveSchedule, ScheduleReport
from headstart.schedule.clock import RunningCosts
from headstart.schedule.curve import Curve, RoundCosts, break_even
from headstart.schedule.running import PastAcceptance, RunningAcceptance
from headstart.schedule.trees import TreeChoice, judged_children

__all__ = [
    "AdaptiveSchedule",
    "Curve",
    "PastAcceptance",
    "RoundCosts",
    "RunningAcceptance",
    "RunningCosts",
    "ScheduleReport",
    "TreeChoice",
    "break_even",
    "judged_children",
]
