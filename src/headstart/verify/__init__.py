"""Rules: how a draft is judged. One rule a file; `decide` is the one place that draws from the laws they state.

`RULES` keep the target's law. Those of `LOSSY_RULES` do not: they are found by name alone, and whatever they make says so.
"""

from __future__ import annotations

from headstart.errors import OptionError, did_you_mean
from headstart.interfaces import Rule
from headstart.verify.block import BlockRule, joint_ratios
from headstart.verify.coupled import CoupledRule, coupled_agreement
from headstart.verify.decide import decide
from headstart.verify.match import MatchRule
from headstart.verify.token import TokenRule
from headstart.verify.typical import TypicalRule

__all__ = [
    "LOSSY_RULES",
    "RULES",
    "BlockRule",
    "CoupledRule",
    "MatchRule",
    "TokenRule",
    "TypicalRule",
    "coupled_agreement",
    "decide",
    "joint_ratios",
    "rule_named",
]

RULES: dict[str, Rule] = {rule.name: rule for rule in (TokenRule(), BlockRule(), MatchRule(), CoupledRule())}
LOSSY_RULES: dict[str, Rule] = {rule.name: rule for rule in (TypicalRule(),)}


def rule_named(name: str, *, lossy: bool = False) -> Rule:
    """The rule called `name`. Raises OptionError for a name that is not a rule, and for a lossy one unless `lossy` allows it."""
    if name in LOSSY_RULES and not lossy:
        raise OptionError(f"`rule` {name} does not keep the target's law, which is wanted here; use {', '.join(RULES)}")
    known = {**RULES, **LOSSY_RULES} if lossy else RULES
    if name not in known:
        raise OptionError(f"`rule` must be one of {', '.join(known)}, got {name!r}{did_you_mean(name, known)}")
    return known[name]
