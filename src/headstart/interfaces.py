"""The seams of Headstart: what a model, a cache, a drafter, a rule and a source of chance must offer.

Axis names: batch, gamma, vocab, hidden, position. Positions are 0-based indices in prompt + output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headstart.checkpoints import EagleHead, Tensor
from headstart.records import Draft, Round
from headstart.rows import FloatArray, IntArray, Row
from headstart.shapes import Shape

__all__ = [
    "Ask",
    "Cache",
    "Context",
    "Divisible",
    "Drafter",
    "Draws",
    "FeatureDrafter",
    "FeatureModel",
    "HeadAsk",
    "HeadCache",
    "HeadEngine",
    "HeadRunner",
    "LookupDrafter",
    "Model",
    "PartedDrafter",
    "Processor",
    "ProductEngine",
    "Products",
    "Remembering",
    "Rule",
    "Schedule",
    "Scores",
    "ShortDrafter",
    "TreeDrafter",
    "VocabularyRows",
]


class Cache(Protocol):
    """What a model remembers of one sequence. `Model.score` appends to it; nothing else makes it longer."""

    @property
    def length(self) -> int:
        """Number of tokens held."""

    def rewind(self, length: int) -> None:
        """Forget everything after the first `length` tokens. Raises ValueError if `length` exceeds what is held."""

    def keep(self, path: Sequence[int]) -> None:
        """Of the tokens of the last `score`, keep those at the indices `path` (increasing), as one chain; drop the others."""

    def fork(self) -> Self:
        """An independent copy; scoring on one does not touch the other."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One sequence's part of a `score` call: append `tokens` to `cache` and say what comes after each."""

    cache: Cache
    tokens: Sequence[int]  # [tokens], at least one
    parents: Sequence[int] | None = None  # [tokens]: index of the parent within `tokens`, −1 for the cache's end; None: a chain
    num_logits: int | None = None  # logits wanted, for the last so many tokens; None: all; 0: none (prefill)
    feature_layers: Sequence[int] = ()  # hidden states wanted: inputs to these layers; the number of layers: after the final norm


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Answer to one `Ask`."""

    logits: FloatArray  # [num_logits, vocab], natural log units up to a constant per row; −inf is allowed
    ids: IntArray | None = None  # [columns] the tokens the columns are of, increasing; None: all of the vocabulary
    features: FloatArray | None = None  # [tokens, feature_layers · hidden] float32, of every token asked; None: not asked for
    # [num_logits] the column of each row's largest logit: the first of equals, or the first NaN; None: not looked for
    best: Sequence[int] | None = None

    def row(self, place: int, processor: Processor, history: Sequence[int]) -> Row:
        """What `processor` makes of one row of the logits. Raises RowError."""
        best = None if self.best is None else self.best[place]
        return processor.row(history, self.logits[place], self.ids, best=best)


class Model(Protocol):
    """A causal language model that answers with logits."""

    vocab_size: int  # width of every row of logits
    context_limit: int  # the most tokens one sequence may hold

    def open(self) -> Cache:
        """An empty cache for one sequence."""

    def score(self, asks: Sequence[Ask]) -> list[Scores]:
        """Score many sequences in one pass, appending to each cache. Raises ValueError past `context_limit`."""


@runtime_checkable
class Divisible(Model, Protocol):
    """A model that can answer with a part of itself."""

    num_layers: int

    def part(self, *, layers: int | None = None, ids: Sequence[int] | None = None) -> Model:
        """Its first `layers` layers, then its own final norm and head, of which only the rows of `ids` (at least) are computed.

        Weights and caches are the model's own. What fewer layers have scored must be rewound before more layers score."""


class Processor(Protocol):
    """Logits into the row that is sampled from: bias, bans, penalties, temperature, truncation."""

    vocab_size: int  # tokens its rows are over; drafts must be over as many

    def row(self, history: Sequence[int], logits: FloatArray, ids: IntArray | None = None, *, best: int | None = None) -> Row:
        """The row after `history` (prompt + output so far). `logits` is not changed. Raises RowError.

        `logits` is [vocab], or [n] for the n tokens `ids` alone (increasing): others are then as if at −inf. `best` is the place
        of the largest where somebody has found it, as `Scores.best`: it only saves time."""

    def law(self, history: Sequence[int], logits: FloatArray) -> Row:
        """The row after bias, bans and penalties, before temperature and truncation: what greedy children are chosen by."""


class Draws(Protocol):
    """Where chance comes from. A request owns its draws; they are made in a stated order."""

    def draw(self, row: Row, position: int) -> int:
        """A token of positive probability, distributed as `row`, for the token at `position` of prompt + output."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a drafter may look at: the tokens so far and how the target's rows will be processed."""

    tokens: Sequence[int]  # prompt + output so far; never empty
    num_prompt: int
    processor: Processor
    cache: Cache | None = None  # the target's, holding all of `tokens` but the last; whoever scores on it rewinds it


@runtime_checkable
class Drafter(Protocol):
    """Whoever guesses the next tokens. One object serves many sequences; `open` gives each its state."""

    name: str

    def open(self, contexts: Sequence[Context]) -> list[Any]:
        """One state a sequence, warmed up on its prompt (this is prefill time)."""

    def propose(
        self, states: Sequence[Any], contexts: Sequence[Context], budgets: Sequence[int], draws: Sequence[Draws]
    ) -> list[Draft]:
        """At most `budgets[i]` ≥ 0 tokens after `contexts[i].tokens`, each with the row it was drawn from.

        How many may depend on rows and on earlier tokens of the draft, never on the token just drawn."""

    def commit(self, state: Any, tokens: Sequence[int], features: FloatArray | None) -> None:
        """`tokens`: prompt + output after the round; forget whatever of the draft is not among them.

        `features` [n, layers · hidden], for a `FeatureDrafter`: of the n tokens scored since the last commit and kept, which
        are `tokens[-1 - n : -1]`; None for others, and where no tokens were scored."""


@runtime_checkable
class LookupDrafter(Drafter, Protocol):
    """A drafter that finds its drafts in text: it draws nothing, and longer drafts cost it nothing more."""

    looks_up: Literal[True]


@runtime_checkable
class ShortDrafter(Drafter, Protocol):
    """A drafter that never drafts more than so many tokens in a row, whatever it is asked for."""

    longest: int


@runtime_checkable
class PartedDrafter(Drafter, Protocol):
    """Several drafters in a row, one of which drafts in a round; each can be given a length of its own."""

    parts: Sequence[Drafter]

    def open_parts(self, state: Any | None, context: Context, limits: Sequence[int]) -> Any:
        """The state of one sequence (None: a new one) with those open that `limits` lets draft; `open` opens all."""

    def propose_parts(
        self, states: Sequence[Any], contexts: Sequence[Context], limits: Sequence[Sequence[int]], draws: Sequence[Draws]
    ) -> list[tuple[int, Draft]]:
        """As `propose`, at most `limits[i][part]` tokens from each part, none from one with 0, and which part's draft it is.

        `limits[i]` were fixed before anything of this round was drawn; which part wins may depend on no draw but its own."""


@runtime_checkable
class FeatureDrafter(Drafter, Protocol):
    """A drafter that reads the target's hidden states. After `open` it gets those of the prompt with a first `commit`."""

    feature_layers: Sequence[int]  # as in `Ask`


class VocabularyRows(Protocol):
    """What a model lends to heads that bring no vocabulary matrices of their own."""

    def embeddings(self, tokens: Sequence[int] | IntArray) -> NDArray[np.float32]:
        """[tokens, hidden]: what the model's first layer reads for each token."""

    def head_rows(self, tokens: Sequence[int] | IntArray) -> NDArray[np.float32]:
        """[tokens, hidden]: the rows of its vocabulary head, as it multiplies its final hidden state by them."""


@runtime_checkable
class FeatureModel(Model, VocabularyRows, Protocol):
    """A model that heads can be run beside: it hands out hidden states and lends its vocabulary matrices."""

    num_layers: int
    hidden_size: int


class HeadCache(Protocol):
    """What a draft head remembers of one sequence. `HeadRunner.run` appends to it; nothing else makes it longer."""

    @property
    def length(self) -> int:
        """Number of entries held."""

    def rewind(self, length: int) -> None:
        """Forget everything after the first `length` entries."""


@dataclass(frozen=True, kw_only=True)
class HeadAsk:
    """One sequence's part of a draft head's pass: entries to append to `cache`, each a token beside a hidden state."""

    cache: Any  # a HeadCache of the runner's own
    tokens: Sequence[int]  # [entries], at least one
    hidden: NDArray[np.float32]  # [entries, hidden]: what the head put out before, or [entries, features]: the target's
    parents: Sequence[int] | None = (
        None  # [entries]: index of the parent in the tree, −1: what the tree hangs from; None: a chain
    )
    grows: bool = False  # they join the tree begun before, whose indices go on; else a tree begins at the cache's end
    num_logits: int = 1  # wanted for the last so many entries


class HeadRunner(Protocol):
    """A draft head (EAGLE) ready to run beside one target. Several sequences share each product."""

    def open(self) -> HeadCache:
        """An empty cache for one sequence."""

    def run(self, asks: Sequence[HeadAsk], *, from_target: bool = False) -> list[Scores]:
        """For each ask what the layer puts out, as features [entries, hidden], and logits [num_logits, draft vocab].

        `from_target`: the hidden states of all asks are the target's; else what the head put out before."""


@runtime_checkable
class HeadEngine(Protocol):
    """A model whose engine runs draft heads beside it."""

    def head_runner(self, head: EagleHead) -> HeadRunner:
        """The head, ready to run. Raises ModelError for one that this engine cannot run."""


class Products(Protocol):
    """Matrices ready to be multiplied by."""

    def multiply(self, index: int, x: NDArray[np.float32], outputs: int | None = None) -> NDArray[np.float32]:
        """[n, outputs] = x [n, inputs] by the matrix at `index`, or by its first `outputs` outputs only."""


@runtime_checkable
class ProductEngine(Protocol):
    """A model whose engine multiplies by matrices that are not its own."""

    def products(self, matrices: Sequence[Tensor], quantize: str | None = None) -> Products:
        """The matrices [outputs, inputs], ready; `quantize` q8_0 or q4_0 (None: the engine's choice). Raises ModelError for
        those that this engine cannot use."""


@runtime_checkable
class TreeDrafter(Drafter, Protocol):
    """A drafter that can also guess several continuations at once."""

    def propose_trees(
        self, states: Sequence[Any], contexts: Sequence[Context], shapes: Sequence[Shape], draws: Sequence[Draws]
    ) -> list[Draft]:
        """A tree for each sequence, no larger and no deeper than its shape.

        How many children a node gets may depend on rows and on tokens drawn before, never on the children themselves."""


@runtime_checkable
class Remembering(Drafter, Protocol):
    """A drafter in which something of one sequence stays behind for the next."""

    def afresh(self) -> Drafter:
        """The same drafter, remembering nothing, and whose memory is its own: for rounds that are only there to be timed."""


class Rule(Protocol):
    """How a draft is judged, stated as a law: no randomness inside, so tests can sum over every outcome.

    Nodes are numbered as in `Draft`: 0 is the end of the text, i the i-th drafted token; `target_rows[node]` is the target's row
    after it. In a chain, stopping at node i is keeping exactly i tokens."""

    name: str
    walks: bool  # drawn by walking (the target's own token at each position) instead of from outcome_probs
    keyed: bool  # needs draws shared by drafter and target (`draws.KeyedDraws`)
    trees: bool  # judges trees too; a lossless rule each node with its children as if they were all there is; else chains only
    lossless: bool  # keeps the target's law

    def outcome_probs(self, target_rows: Sequence[Row], draft: Draft) -> FloatArray:
        """[nodes + 1]: probability of stopping at each node, given the draft. `target_rows` has one row a node."""

    def next_probs(self, target_rows: Sequence[Row], draft: Draft, node: int) -> Row:
        """Law of the one extra token, given that the walk stops at `node`."""


class Schedule(Protocol):
    """How long each draft of one sequence may be. One object a sequence: its state is the sequence's own.

    It is asked before anything is drawn and told only of rounds that are over, so that lengths are stopping times."""

    def length(self, room: int, batch: int) -> int:
        """Tokens to draft in the next round of `batch` sequences side by side, at most `room`.

        0: a plain round, for which the drafter is not called."""

    def limits(self) -> Sequence[int]:
        """In the round `length` was just asked about, tokens for each part of a `PartedDrafter`, at most what `length` said; one
        number holds for all."""

    def tree(self) -> Shape | None:
        """The tree to draft in the round `length` was just asked about, as deep as it said at most; None: a chain."""

    def saw(self, done: Round, *, drafted: Sequence[int], seconds: float) -> None:
        """A round of this sequence is over; `drafted` has what each sequence of the pass drafted, `seconds` is what it took."""
