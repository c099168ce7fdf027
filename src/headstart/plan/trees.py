"""Draft trees in a plan: how a drafter's trees do on the sampled prompts, and which tree would be best for it here.

A tree is run on every prompt as it would be used. What is kept of it is counted by depth and rank, and its seconds by part: a
round is predicted to take what scoring its nodes costs by the measured curve, times what the rest of the run took beside scoring.
A machine that was slower just then thus makes no tree look dear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headstart.decode import Decoder, Request
from headstart.draws import KeyedDraws, StreamDraws
from headstart.errors import OptionError
from headstart.generation import LLM
from headstart.interfaces import Drafter
from headstart.plan.predict import Candidate, speed_of
from headstart.plan.texts import Text
from headstart.schedule import RoundCosts, RunningAcceptance, judged_children
from headstart.shapes import Shape, best_tree
from headstart.verify import rule_named

__all__ = ["TreeSample", "best_shape", "predict_tree", "run_trees"]

_PROBE = Shape.full([3, 2, 2])  # what acceptance by rank is counted on: wide enough to know third children
_MOST_NODES = 16


@dataclass(frozen=True, kw_only=True)
class TreeSample:
    """One prompt's run with a tree."""

    nodes: tuple[int, ...]  # [rounds]: tokens drafted
    tokens: int  # emitted
    judged: tuple[tuple[tuple[int, int | None], ...], ...]  # [rounds]: of each node reached, its children and the rank kept
    score_seconds: float
    other_seconds: float  # drafting, judging and the rest


def run_trees(llm: LLM, texts: Sequence[Text], drafter: Drafter, shape: Shape, rule: str, *, seed: int = 0) -> list[TreeSample]:
    """Every prompt answered once with trees of `shape`. `llm` lends its model."""
    judge, found = rule_named(rule), []
    for place, text in enumerate(texts):
        request = Request(
            text.tokens[: text.num_prompt],
            rule=judge,
            draws=(KeyedDraws if judge.keyed else StreamDraws)(seed + place),
            processor=text.processor,
            max_tokens=text.max_tokens,
            tree=shape,
        )
        for _ in Decoder(llm.model, drafter).run([request]):
            pass
        spent = request.stats.seconds
        found.append(
            TreeSample(
                nodes=tuple(done.num_drafted for done in request.rounds),
                tokens=len(request.output),
                judged=tuple(tuple(judged_children(done)) for done in request.rounds if done.draft),
                score_seconds=spent.score,
                other_seconds=spent.draft + spent.verify + spent.other,
            )
        )
    return found


def best_shape(llm: LLM, texts: Sequence[Text], drafter: Drafter, costs: RoundCosts, rule: str, *, seed: int = 0) -> Shape | None:
    """The best tree by Sequoia's dynamic programme, for acceptances counted on a wide tree and for `costs`; None where a chain,
    or plain decoding, is better. It comes back as room to grow in, WIDTHxDEPTH:NODES."""
    accepted = RunningAcceptance(_PROBE.depth, weight=1.0, decay=1.0, ranks=_PROBE.width)
    for sample in run_trees(llm, texts, drafter, _PROBE, rule, seed=seed):
        for judged in sample.judged:
            accepted.saw_children(judged)
    by_rank = accepted.by_rank()
    deeper = [*by_rank, *[by_rank[-1]] * 3]  # deeper than was tried: as at the deepest that was
    best = best_tree(
        deeper,
        lambda tokens: costs.score(costs.batch * tokens) + costs.overhead(0),
        draft_cost=costs.draft(4) / 4,
        max_nodes=_MOST_NODES,
        max_depth=len(deeper),
    )
    if best is None or best.shape.nodes == best.shape.depth:
        return None
    wide = max(path[-1] + 1 for path in best.shape.paths or ())
    return Shape(width=wide, depth=best.shape.depth, nodes=best.shape.nodes)


def predict_tree(
    drafter: str,
    samples: Sequence[TreeSample],
    costs: RoundCosts,
    plain: Candidate,
    *,
    rule: str,
    shape: Shape,
    seed: int = 0,
) -> Candidate:
    """What trees of `shape` by `drafter` are expected to give. Raises OptionError without a sample."""
    if not samples:
        raise OptionError("`samples` must hold at least one prompt's sample")
    scored = sum(sample.score_seconds for sample in samples)
    share = 1.0 + sum(sample.other_seconds for sample in samples) / scored if scored > 0 else 1.0
    tokens = np.array([sample.tokens for sample in samples], dtype=np.float64)
    seconds = np.array([share * sum(costs.score(costs.batch * (1 + n)) for n in sample.nodes) for sample in samples])
    speed, interval = speed_of(tokens, seconds, costs.batch, seed)
    return Candidate(
        drafter=drafter,
        gamma=shape.depth,
        tree=str(shape),
        rule=rule,
        predicted_tokens_per_second=speed,
        interval=interval,
        walltime_improvement=speed / plain.predicted_tokens_per_second,
        closed_form=None,  # the article's is for chains
        break_even=None,
    )
