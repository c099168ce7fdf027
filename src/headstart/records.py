"""Frozen values that rooms hand to each other: drafts, options, per-round records, counts.

Every value is keyword-only and valid from birth. Defaults of every option are written here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Literal, get_args

import numpy as np

from headstart.drafts import Draft
from headstart.errors import OptionError, did_you_mean
from headstart.shapes import Shape

__all__ = [
    "DEFAULT_GAMMA",
    "LONGEST_GAMMA",
    "Decision",
    "Draft",
    "FinishReason",
    "Options",
    "Round",
    "RuleName",
    "Sampling",
    "Seconds",
    "Stats",
    "TokenLogprobs",
]

RuleName = Literal["token", "block", "match", "coupled", "typical"]  # all but typical keep the target's law
FinishReason = Literal["stop", "length"]

DEFAULT_GAMMA = 4  # where a length is to be fixed and none is given
LONGEST_GAMMA = 8  # the most that `gamma="auto"` drafts: beyond it a pass costs more on every machine measured so far
DEFAULT_RULE: RuleName = "block"
DEFAULT_TREE_RULE: RuleName = "token"  # block judges chains only


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a rule decided: keep the `num_accepted` drafted tokens down to `node`, then emit `token`."""

    node: int  # in a chain, num_accepted
    num_accepted: int
    token: int


def _check(name: str, ok: bool, must: str, value: object, way_out: str = "") -> None:
    if not ok:
        raise OptionError(f"`{name}` must be {must}, got {value!r}{way_out}")


def _is_int(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _plain_numbers(options: Any) -> None:
    """Numbers of numpy's become Python's, so that options compare, hash and print alike wherever they came from."""
    for f in fields(options):
        value = getattr(options, f.name)
        if isinstance(value, np.generic) and (_is_int(value) or _is_real(value)):
            object.__setattr__(options, f.name, value.item())


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How logits become the row that is sampled from. The order of processing is the order of design (see `probs`)."""

    temperature: float = 0.0  # 0: a point mass on the likeliest token
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off
    typical_p: float = 1.0  # 1: off
    repetition_penalty: float = 1.0  # prompt + output (Keskar et al. 2019); 1: off
    presence_penalty: float = 0.0  # output only; 0: off
    frequency_penalty: float = 0.0  # output only; 0: off
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id → added to its logit
    ban: tuple[int, ...] = ()  # token ids that are never emitted
    min_tokens: int = 0  # end tokens are banned until so many tokens are out

    def __post_init__(self) -> None:
        _plain_numbers(self)
        _check(
            "temperature", _is_real(self.temperature) and self.temperature >= 0, "0 or more", self.temperature, "; 0 is greedy"
        )
        _check("top_k", _is_int(self.top_k) and self.top_k >= 0, "a whole number, 0 (off) or more", self.top_k)
        _check("top_p", _is_real(self.top_p) and 0 < self.top_p <= 1, "over 0 and at most 1 (off)", self.top_p)
        _check("min_p", _is_real(self.min_p) and 0 <= self.min_p <= 1, "between 0 (off) and 1", self.min_p)
        _check("typical_p", _is_real(self.typical_p) and 0 < self.typical_p <= 1, "over 0 and at most 1 (off)", self.typical_p)
        repetition = self.repetition_penalty
        _check("repetition_penalty", _is_real(repetition) and repetition > 0, "over 0 (1 is off)", repetition)
        _check("presence_penalty", _is_real(self.presence_penalty), "a finite number", self.presence_penalty)
        _check("frequency_penalty", _is_real(self.frequency_penalty), "a finite number", self.frequency_penalty)
        _check("min_tokens", _is_int(self.min_tokens) and self.min_tokens >= 0, "a whole number, 0 or more", self.min_tokens)
        object.__setattr__(self, "ban", _as_tuple("ban", self.ban))
        for token in self.ban:
            _check("ban", _is_int(token) and token >= 0, "token ids, 0 or more", token)
        _check("logit_bias", isinstance(self.logit_bias, Mapping), "a mapping from token id to bias", self.logit_bias)
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        for token, bias in self.logit_bias.items():
            _check("logit_bias", _is_int(token) and token >= 0, "keyed by token ids, 0 or more", token)
            _check("logit_bias", _is_real(bias), "a finite number for each token", bias, "; use `ban` to forbid a token")


def _as_tuple(name: str, value: object) -> tuple[Any, ...]:
    if isinstance(value, (str, int)):
        return (value,)
    if isinstance(value, (Sequence, set, frozenset)):
        return tuple(value)
    raise OptionError(f"`{name}` must be a value or a list of values, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Everything that one generation can be asked. Names are the command line's, with underscores."""

    sampling: Sampling = field(default_factory=Sampling)
    gamma: int | Literal["auto"] | None = None  # auto: found out round by round (see `schedule`); None: see `resolved_gamma`
    tree: Shape | Literal["auto"] | None = (
        None  # None: chains; auto: found out with the length; also taken as WIDTHxDEPTH or none
    )
    rule: RuleName | None = None  # None: block (token for trees), or coupled where a seed is given and temperature > 0
    seed: int | None = None
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    logprobs: int | None = None  # alternatives to report at each token; 0: only the emitted token's; None: no logprobs
    chat: bool | None = None  # None: chat where the model has a template
    system: str | None = None

    def __post_init__(self) -> None:
        _plain_numbers(self)
        gamma = self.gamma
        way_out = "; use --drafter none for plain decoding"
        _check(
            "gamma", gamma is None or gamma == "auto" or (_is_int(gamma) and gamma >= 1), "1 or more or 'auto'", gamma, way_out
        )
        self._check_tree()
        known = get_args(RuleName)
        _check("rule", self.rule is None or self.rule in known, f"one of {', '.join(known)}", self.rule)
        seed = self.seed
        _check("seed", seed is None or (_is_int(seed) and 0 <= seed < 2**63), "a whole number from 0 to 2**63 - 1", seed)
        _check("max_tokens", _is_int(self.max_tokens) and self.max_tokens >= 1, "a whole number, 1 or more", self.max_tokens)
        object.__setattr__(self, "stop", _as_tuple("stop", self.stop))
        for text in self.stop:
            _check("stop", isinstance(text, str) and text != "", "texts that are not empty", text)
        top = self.logprobs
        _check("logprobs", top is None or (_is_int(top) and top >= 0), "a whole number, 0 or more", top)
        _check("chat", self.chat is None or isinstance(self.chat, bool), "True, False or None", self.chat)
        _check("system", self.system is None or isinstance(self.system, str), "a text", self.system)
        if self.sampling.min_tokens > self.max_tokens:
            raise OptionError(f"`min_tokens` must be at most max_tokens ({self.max_tokens}), got {self.sampling.min_tokens}")
        if self.gamma == "auto" and self._repeats_by_length:
            raise OptionError(
                f"`seed` with rule {self.rule!r} and gamma 'auto' cannot promise the same text twice, got seed {self.seed}; "
                "use --rule coupled or a fixed --gamma"
            )

    def _check_tree(self) -> None:
        if isinstance(self.tree, str):
            words: dict[str, Any] = {"none": None, "auto": "auto"}
            object.__setattr__(self, "tree", words[self.tree] if self.tree in words else Shape.parse(self.tree))
        if self.tree is None:
            return
        known = self.tree == "auto" or isinstance(self.tree, Shape)
        _check("tree", known, "WIDTHxDEPTH such as 4x3, a Shape, auto or none", self.tree)
        _check("rule", self.rule != "block", "token, match or coupled on a tree", self.rule, "; block judges chains only")
        if self.tree == "auto":
            way_out = "; drop --gamma, or give --tree WIDTHxDEPTH"
            _check("gamma", self.gamma in (None, "auto"), "auto, or left out, with tree 'auto'", self.gamma, way_out)
            if self._repeats_by_length:
                raise OptionError(
                    f"`seed` with rule {self.rule!r} and tree 'auto' cannot promise the same text twice, got seed {self.seed}; "
                    "use --rule coupled or a fixed --tree"
                )
            return
        _check("gamma", self.gamma is None, "left out with a tree, whose depth it is", self.gamma, "; drop --gamma or --tree")

    @staticmethod
    def names() -> tuple[str, ...]:
        """Every option name, those of `Sampling` included."""
        return tuple(f.name for f in (*fields(Options), *fields(Sampling)) if f.name != "sampling")

    @staticmethod
    def of(**values: Any) -> Options:
        """Options from flat names, e.g. `Options.of(temperature=1, max_tokens=64)`. Raises OptionError for unknown names."""
        return Options().changed(**values)

    def changed(self, **values: Any) -> Options:
        """These options with some changed, by flat names. Raises OptionError for unknown names or impossible values."""
        for name in values:
            if name not in Options.names():
                raise OptionError(f"`{name}` is not an option{did_you_mean(name, Options.names())}")
        inner = {f.name for f in fields(Sampling)}
        sampling = replace(self.sampling, **{name: value for name, value in values.items() if name in inner})
        return replace(self, sampling=sampling, **{name: value for name, value in values.items() if name not in inner})

    @property
    def resolved_rule(self) -> RuleName:
        """The rule in force."""
        if self.rule is not None:
            return self.rule
        if self.seed is not None and self.sampling.temperature > 0:
            return "coupled"
        return DEFAULT_RULE if self.tree is None else DEFAULT_TREE_RULE

    @property
    def resolved_gamma(self) -> int | Literal["auto"]:
        """The draft length in force: on a tree, its depth; else auto where none was given, and 4 where a seed is to give the same
        text again under a rule that is not `coupled`: automatic lengths follow the clock."""
        if self.tree is not None:
            return self.tree if self.tree == "auto" else self.tree.depth
        if self.gamma is not None:
            return self.gamma
        return DEFAULT_GAMMA if self._repeats_by_length else "auto"

    @property
    def _repeats_by_length(self) -> bool:
        """Whether a seed was given and gives the same text only with the same lengths of drafts."""
        return self.seed is not None and self.sampling.temperature > 0 and self.rule not in (None, "coupled")

    @property
    def fixed_tree(self) -> Shape | None:
        """The tree that every round drafts, if there is one."""
        return None if self.tree == "auto" else self.tree

    @property
    def longest_draft(self) -> int:
        """The longest path a round may draft."""
        length = self.resolved_gamma
        return LONGEST_GAMMA if length == "auto" else length

    def to_json(self) -> dict[str, Any]:
        """Flat, JSON-ready, in the order the names are declared."""
        flat = {f.name: getattr(self, f.name) for f in fields(Options) if f.name != "sampling"}
        flat |= {f.name: getattr(self.sampling, f.name) for f in fields(Sampling)}
        flat["tree"] = "auto" if self.tree == "auto" else None if self.tree is None else self.tree.to_json()
        flat["logit_bias"] = {str(token): bias for token, bias in self.sampling.logit_bias.items()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in flat.items()}


@dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities (natural log) at one emitted token: after bias, bans and penalties, before temperature and truncation."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token, logprob), likeliest first


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Where wall-clock time went, in seconds. For a sequence in a batch: the time of the rounds it took part in."""

    prefill: float = 0.0
    draft: float = 0.0
    score: float = 0.0
    verify: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return self.prefill + self.draft + self.score + self.verify + self.other


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of one sequence, as the rule decided it and as it was emitted."""

    draft: tuple[int, ...]  # [nodes] drafted tokens
    num_accepted: int  # the rule's decision, before cutting
    emitted: tuple[int, ...]  # accepted tokens and the extra one, after cutting
    num_cut: int  # decided tokens dropped by a stop; also the extra token where none could be drawn
    overlaps: tuple[float, ...] = ()  # Σ min(p, q) at each judged position; for chosen children Σ p over them
    parents: tuple[int, ...] | None = None  # [nodes]: what each drafted token hangs from, as in `Draft`; None: a chain
    path: tuple[int, ...] | None = None  # [num_accepted]: indices in `draft` of the accepted tokens; None: the first ones
    part: int = 0  # which of several drafters in a row made the draft

    @property
    def num_drafted(self) -> int:
        """Tokens drafted this round."""
        return len(self.draft)

    @property
    def rejected(self) -> bool:
        """Whether a drafted token was turned down: the extra token is then a correction, else a bonus."""
        if self.parents is None:
            return self.num_accepted < len(self.draft)
        return (self.path[-1] if self.path else -1) in self.parents

    @property
    def branches(self) -> tuple[int, ...]:
        """[num_accepted]: how many siblings each accepted token had before it; 0 everywhere in a chain."""
        if self.parents is None:
            return (0,) * self.num_accepted
        return tuple(self.parents[:place].count(self.parents[place]) for place in self.path or ())


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Counts over rounds. Decisions are counted before cutting, completion tokens after it; rates are None when 0/0."""

    num_rounds: int
    num_drafted: int
    num_accepted: int
    num_rejections: int
    num_cut: int
    accepted_histogram: tuple[int, ...]  # n_i: rounds that accepted exactly i tokens
    mean_overlap: float | None
    seconds: Seconds

    @staticmethod
    def of(rounds: Sequence[Round], seconds: Seconds) -> Stats:
        """Count `rounds`."""
        histogram = [0] * (1 + max((r.num_accepted for r in rounds), default=0))
        for r in rounds:
            histogram[r.num_accepted] += 1
        overlaps = [overlap for r in rounds for overlap in r.overlaps]
        return Stats(
            num_rounds=len(rounds),
            num_drafted=sum(r.num_drafted for r in rounds),
            num_accepted=sum(r.num_accepted for r in rounds),
            num_rejections=sum(r.rejected for r in rounds),
            num_cut=sum(r.num_cut for r in rounds),
            accepted_histogram=tuple(histogram),
            mean_overlap=sum(overlaps) / len(overlaps) if overlaps else None,
            seconds=seconds,
        )

    @property
    def target_calls(self) -> int:
        """Passes of the target after prefill: one a round."""
        return self.num_rounds

    @property
    def completion_tokens(self) -> int:
        """Emitted tokens."""
        return self.num_accepted + self.num_rounds - self.num_cut

    @property
    def block_efficiency(self) -> float | None:
        """Completion tokens per target call; plain decoding has exactly 1."""
        return self.completion_tokens / self.num_rounds if self.num_rounds else None

    @property
    def mean_accepted(self) -> float | None:
        """Accepted tokens per round."""
        return self.num_accepted / self.num_rounds if self.num_rounds else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / (accepted + rounds that rejected). Not accepted/drafted: that is `draft_utilization`."""
        judged = self.num_accepted + self.num_rejections
        return self.num_accepted / judged if judged else None

    @property
    def draft_utilization(self) -> float | None:
        """Accepted / drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else None

    @property
    def tokens_per_second(self) -> float | None:
        """Completion tokens per second, prefill excluded."""
        spent = self.seconds.total - self.seconds.prefill
        return self.completion_tokens / spent if spent > 0 else None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready, names as documented for `generate --json`."""
        seconds = {f.name: getattr(self.seconds, f.name) for f in fields(Seconds)} | {"total": self.seconds.total}
        return {
            "num_rounds": self.num_rounds,
            "target_calls": self.target_calls,
            "num_drafted": self.num_drafted,
            "num_accepted": self.num_accepted,
            "num_rejections": self.num_rejections,
            "num_cut": self.num_cut,
            "accepted_histogram": list(self.accepted_histogram),
            "block_efficiency": self.block_efficiency,
            "mean_accepted": self.mean_accepted,
            "acceptance_rate": self.acceptance_rate,
            "draft_utilization": self.draft_utilization,
            "mean_overlap": self.mean_overlap,
            "seconds": seconds,
            "tokens_per_second": self.tokens_per_second,
        }
