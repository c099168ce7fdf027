"""Rules: how a draft is judged. One rule a file; `decide` is the one place that draws from the laws they state."""

from __future__ import annotations

from headstart.errors import OptionError, did_you_mean
from headstart.interfaces import Rule
from headstart.verify.block import BlockRule, joint_ratios
from headstart.verify.coupled import CoupledRule, coupled_agreement
from headstart.verify.decide import decide
from headstart.verify.match import MatchRule
from headstart.verify.token import TokenRule

__all__ = [
    "RULES",
    "BlockRule",
    "CoupledRule",
    "MatchRule",
    "TokenRule",
    "coupled_agreement",
    "decide",
    "joint_ratios",
    "rule_named",
]

RULES: dict[str, Rule] = {rule.name: rule for rule in (TokenRule(), BlockRule(), MatchRule(), CoupledRule())}


def rule_named(name: str) -> Rule:
    """The rule called `name`. Raises OptionError for a name that is not a rule."""
    if name not in RULES:
        raise OptionError(f"`rule` must be one of {', '.join(RULES)}, got {name!r}{did_you_mean(name, RULES)}")
    return RULES[name]
