"""EAGLE heads: rows against an independent float32 computation in torch, from files in the published form.

The reference below knows nothing of ours: it reads the file's keys itself and computes a whole sequence at once, without a
cache.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from headstart.checkpoints import EagleHead, Rope, read_head, write_head
from headstart.drafters import CombinedDrafter, EagleDrafter, NGramDrafter
from headstart.draws import KeyedDraws, StreamDraws
from headstart.interfaces import Context, TreeDrafter
from headstart.probs import SamplingProcessor
from headstart.records import Draft, Sampling
from headstart.shapes import Shape
from tests.checkpoints.heads import DRAFT, HIDDEN, TARGET_HIDDEN, VOCAB, Vocabulary, eagle

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

LAYERS = 6
LLAMA3 = Rope(
    theta=300.0, kind="llama3", original_length=32,
    numbers=(("factor", 8.0), ("high_freq_factor", 4.0), ("low_freq_factor", 1.0)),
)  # fmt: skip
YARN = Rope(theta=300.0, kind="yarn", original_length=32, numbers=(("beta_fast", 16.0), ("factor", 4.0)))
HEADS = {
    "eagle3": lambda: eagle(3),
    "eagle3 norm before residual": lambda: eagle(3, norm_before_residual=True, num_kv_heads=4),
    "eagle3 whole vocabulary": lambda: eagle(3, draft_vocab_size=VOCAB, rope=Rope(theta=50.0)),
    "eagle3 half precision": lambda: eagle(3, dtype="BF16", attention_bias=True),
    "eagle3 the target's head": lambda: eagle(3, own_head=False),
    "eagle3 llama3": lambda: eagle(3, rope=LLAMA3),
    "eagle3 yarn": lambda: eagle(3, rope=YARN),
    "eagle1": lambda: eagle(1),
    "eagle1 biases": lambda: eagle(1, fc_bias=True, attention_bias=True, rms_norm_eps=1e-3),
    "eagle1 linear": lambda: eagle(1, rope=Rope(theta=300.0, kind="linear", numbers=(("factor", 3.0),))),
}


def transformers_rates(config: dict) -> tuple[torch.Tensor, float]:
    """Angles per position and the magnitude, as transformers has them."""
    known = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    parameters = config["rope_scaling"] | {"rope_theta": config["rope_theta"]}
    llama = pytest.importorskip("transformers").LlamaConfig(
        hidden_size=config["hidden_size"], num_attention_heads=config["num_attention_heads"], head_dim=config["head_dim"],
        rope_parameters=parameters, max_position_embeddings=128,
    )  # fmt: skip
    rates, size = known[parameters["rope_type"]](llama, "cpu")
    return rates.double(), size


def reference_logits(folder, vocabulary: Vocabulary, tokens: list[int], features: np.ndarray, num_prompt: int) -> np.ndarray:
    """[draft vocab] logits for the token after `tokens`, of which the first `num_prompt` have known hidden states but the last.

    Entries beyond those read the head's own output. Everything is recomputed for each step, without a cache."""
    config = json.loads((folder / "config.json").read_text())
    w = {name: value.float() for name, value in safetensors.load_file(folder / "model.safetensors").items()}
    third = "norm.weight" in w
    w = {name.replace("layers.0.", "midlayer."): value for name, value in w.items()}
    eps, dim = config["rms_norm_eps"], config["head_dim"]

    def norm(x, weight):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight

    def linear(x, name):
        out = torch.einsum("ti,oi->to", x, w[name + ".weight"])
        return out + w[name + ".bias"] if name + ".bias" in w else out

    def turn(x):
        """[tokens, heads, dim], by complex numbers."""
        half = dim // 2
        rates, size = 1.0 / config["rope_theta"] ** (torch.arange(half).double() / half), 1.0
        if "rope_scaling" in config:
            rates, size = transformers_rates(config)
        turns = torch.polar(torch.full((1,), size, dtype=torch.float64), torch.arange(len(x)).double()[:, None] * rates)
        z = torch.complex(x[..., :half].double(), x[..., half:].double()) * turns[:, None, :]
        return torch.cat((z.real, z.imag), dim=-1).float()

    def layer(embedded, hidden):
        if third:
            normed = norm(hidden, w["midlayer.hidden_norm.weight"])
            joined = torch.cat((norm(embedded, w["midlayer.input_layernorm.weight"]), normed), dim=-1)
            residual = normed if config["norm_before_residual"] else hidden
        else:
            joined = residual = linear(torch.cat((embedded, hidden), dim=-1), "fc")
        q, k, v = (linear(joined, f"midlayer.self_attn.{name}_proj").unflatten(-1, (-1, dim)) for name in "qkv")
        q, k = turn(q), turn(k)
        out = torch.zeros_like(q)
        for h in range(q.shape[1]):
            kv = h // (q.shape[1] // k.shape[1])
            for t in range(len(q)):
                weights = torch.softmax(k[: t + 1, kv] @ q[t, h] / dim**0.5, dim=0)
                out[t, h] = weights @ v[: t + 1, kv]
        x = residual + linear(out.flatten(1), "midlayer.self_attn.o_proj")
        inner = norm(x, w["midlayer.post_attention_layernorm.weight"])
        gate, up = linear(inner, "midlayer.mlp.gate_proj"), linear(inner, "midlayer.mlp.up_proj")
        return x + linear(gate * torch.sigmoid(gate) * up, "midlayer.mlp.down_proj")

    states = torch.from_numpy(features)
    hidden = linear(states, "fc") if third else states
    for step in range(num_prompt - 1, len(tokens)):
        embedded = torch.from_numpy(vocabulary.embed[tokens[1 : step + 1]])
        output = layer(embedded, hidden)
        hidden = torch.cat((hidden, output[-1:]))
    last = norm(output[-1], w["norm.weight"]) if third else output[-1]
    rows = w.get("lm_head.weight")
    if rows is None:
        ids = torch.arange(DRAFT) + w["d2t"].long() if "d2t" in w else torch.arange(VOCAB)
        rows = torch.from_numpy(vocabulary.head)[ids]
    return (rows @ last).numpy()


def context(tokens, sampling: Sampling | None = None) -> Context:
    """What a drafter sees."""
    sampling = sampling or Sampling(temperature=0.7)
    return Context(tokens=tokens, num_prompt=3, processor=SamplingProcessor(sampling, num_prompt=3, vocab_size=VOCAB))


def width(head: EagleHead) -> int:
    """Numbers in the features of one token."""
    return HIDDEN if head.config.generation == 1 else 3 * head.config.target_hidden_size


def text(count: int, seed: int = 0) -> list[int]:
    """Random tokens."""
    return np.random.default_rng(seed).integers(VOCAB, size=count).tolist()


def states_of(head: EagleHead, tokens: list[int]) -> np.ndarray:
    """[tokens, features]: made-up hidden states, a function of the text up to each token."""
    rows = [np.random.default_rng([7, *tokens[: i + 1]]).normal(size=width(head)) for i in range(len(tokens))]
    return np.asarray(rows, dtype=np.float32).reshape(len(tokens), width(head))


def opened(drafter: EagleDrafter, head: EagleHead, tokens: list[int]):
    """A state that knows the text."""
    (state,) = drafter.open([context(tokens)])
    drafter.commit(state, tokens, states_of(head, tokens[:-1]) if len(tokens) > 1 else None)
    return state


@pytest.mark.parametrize("case", HEADS)
def test_rows_equal_an_independent_computation(case, tmp_path) -> None:
    """From a published file to the rows of a draft of five, drawn on the head's own output; zero outside its vocabulary."""
    head = HEADS[case]()
    form = "eagle" if head.config.generation == 1 else "eagle3"
    write_head(head, tmp_path, form)
    vocabulary = Vocabulary()
    drafter = EagleDrafter(read_head(tmp_path), vocabulary, num_layers=LAYERS)
    assert tuple(drafter.feature_layers) == ((LAYERS,) if form == "eagle" else (2, 3, 3))
    ids = np.arange(VOCAB) if head.token_ids is None else head.token_ids
    for seed, count in enumerate((2, 3, 9)):
        tokens = text(count, seed)
        state = opened(drafter, head, tokens)
        (draft,) = drafter.propose([state], [context(tokens)], [5], [StreamDraws(seed)])
        assert len(draft) == 5
        for place, row in enumerate(draft.rows):
            before = [*tokens, *draft.tokens[:place]]
            logits = reference_logits(tmp_path, vocabulary, before, states_of(head, tokens[:-1]), count)
            want = np.exp((logits - logits.max()) / 0.7)
            full = np.zeros(VOCAB)
            full[ids] = want / want.sum()
            np.testing.assert_allclose(row.to_array(), full, atol=2e-5)
            assert row.vocab_size == VOCAB
            assert row.prob(draft.tokens[place]) > 0


@pytest.mark.parametrize("case", HEADS)
def test_after_any_number_kept_it_is_as_if_fresh(case) -> None:
    """Propose, keep k tokens and another one, commit: the next draft is that of a drafter opened on the same text."""
    head, vocabulary = HEADS[case](), Vocabulary()
    drafter = EagleDrafter(head, vocabulary, num_layers=LAYERS)
    for kept in range(4):
        tokens = text(5, kept)
        state = opened(drafter, head, tokens)
        for turn in range(4):
            (draft,) = drafter.propose([state], [context(tokens)], [0 if turn == 2 else 3], [KeyedDraws(turn)])
            old = len(tokens)
            tokens = [*tokens, *draft.tokens[:kept], (turn + kept) % VOCAB]
            drafter.commit(state, tokens, states_of(head, tokens[:-1])[old - 1 :])
        again = EagleDrafter(head, vocabulary, num_layers=LAYERS)
        (want,) = again.propose([opened(again, head, tokens)], [context(tokens)], [3], [KeyedDraws(9)])
        (got,) = drafter.propose([state], [context(tokens)], [3], [KeyedDraws(9)])
        assert got.tokens == want.tokens
        for a, b in zip(got.rows, want.rows, strict=True):
            np.testing.assert_allclose(a.to_array(), b.to_array(), atol=1e-5)


def test_a_batch_equals_its_parts() -> None:
    """Sequences of different lengths and budgets share products and nothing else."""
    head, vocabulary = eagle(3), Vocabulary()
    drafter = EagleDrafter(head, vocabulary, num_layers=LAYERS)
    texts, budgets = [text(count, count) for count in (2, 7, 4, 1, 300)], [3, 1, 0, 2, 4]
    states = [opened(drafter, head, tokens) for tokens in texts]
    draws = [StreamDraws(place) for place in range(5)]
    together = drafter.propose(states, [context(tokens) for tokens in texts], budgets, draws)
    assert [len(draft) for draft in together] == [3, 1, 0, 0, 4]  # one token has no hidden states before it
    for place, tokens in enumerate(texts):
        state = opened(drafter, head, tokens)
        (alone,) = drafter.propose([state], [context(tokens)], [budgets[place]], [StreamDraws(place)])
        assert alone.tokens == together[place].tokens
        for a, b in zip(alone.rows, together[place].rows, strict=True):
            np.testing.assert_allclose(a.to_array(), b.to_array(), atol=1e-5)


def test_greedy_and_truncated_drafts_are_rows_of_the_head_s_own_vocabulary() -> None:
    """Temperature 0 gives points, top-k that many tokens, a ban is kept; always tokens the head has."""
    head = eagle(3)
    drafter = EagleDrafter(head, Vocabulary(), num_layers=LAYERS)
    tokens = text(6)
    banned = int(head.token_ids[0])
    for sampling, most in (
        (Sampling(), 1),
        (Sampling(temperature=1.0, top_k=3), 3),
        (Sampling(temperature=1.0, ban=(banned,)), DRAFT),
    ):
        (draft,) = drafter.propose([opened(drafter, head, tokens)], [context(tokens, sampling)], [4], [StreamDraws(0)])
        assert len(draft) == 4
        for row in draft.rows:
            alive = np.flatnonzero(row.to_array())
            assert len(alive) <= most
            assert set(alive) <= set(head.token_ids.tolist())
            assert banned not in alive or not sampling.ban


def test_a_head_that_was_not_told_everything_proposes_nothing() -> None:
    """Where hidden states of some tokens never came, a draft would be made from the wrong place."""
    head = eagle(3)
    drafter = EagleDrafter(head, Vocabulary(), num_layers=LAYERS)
    tokens = text(5)
    state = opened(drafter, head, tokens)
    drafter.commit(state, [*tokens, 1, 2], None)
    (draft,) = drafter.propose([state], [context([*tokens, 1, 2])], [3], [StreamDraws(0)])
    assert len(draft) == 0


def test_everything_banned_ends_the_draft() -> None:
    """A row nothing can be drawn from is not an error of the drafter's."""
    head = eagle(3)
    drafter = EagleDrafter(head, Vocabulary(), num_layers=LAYERS)
    tokens = text(5)
    sampling = Sampling(ban=tuple(int(i) for i in head.token_ids))
    (draft,) = drafter.propose([opened(drafter, head, tokens)], [context(tokens, sampling)], [3], [StreamDraws(0)])
    assert len(draft) == 0
    assert head.config.target_hidden_size == TARGET_HIDDEN


def test_combined_with_others_it_gets_its_own_hidden_states() -> None:
    """Two heads that read different layers, and a lookup between them: each is told what it reads, in its place."""
    first, second = eagle(3, feature_layers=(0, 2, 5)), eagle(1, seed=1, feature_layers=(6,), target_hidden_size=TARGET_HIDDEN)
    told: dict[str, list[np.ndarray | None]] = {}

    class Told:
        def __init__(self, name, layers):
            self.name, self.feature_layers = name, layers

        def open(self, contexts):
            return [None] * len(contexts)

        def propose(self, states, contexts, budgets, draws):
            return [Draft() for _ in states]

        def commit(self, state, tokens, features):
            told.setdefault(self.name, []).append(features)

    layers = (first.config.layers_of(LAYERS), second.config.layers_of(LAYERS))
    both = CombinedDrafter(Told("a", layers[0]), NGramDrafter(VOCAB), Told("b", layers[1]))
    assert tuple(both.feature_layers) == (0, 2, 5, 6)
    (state,) = both.open([context([1, 2, 3])])
    features = np.arange(2 * 4 * 5, dtype=np.float32).reshape(2, 20)
    both.commit(state, [1, 2, 3], features)
    both.commit(state, [1, 2, 3], None)
    assert told["a"][0].tolist() == features[:, :15].tolist()
    assert told["b"][0].tolist() == features[:, 15:].tolist()
    assert told["a"][1] is None
    assert told["b"][1] is None


@pytest.mark.parametrize("case", HEADS)
@pytest.mark.parametrize("sampling", [Sampling(temperature=0.7), Sampling()], ids=["drawn", "chosen"])
def test_rows_of_a_tree_are_those_of_its_paths(case, sampling, tmp_path) -> None:
    """At every node of a tree the row is what an independent computation gives for the path down to it as a chain.

    Chosen children are the likeliest of that row, drawn ones come with it (the first of each node; its siblings without
    replacement)."""
    head = HEADS[case]()
    write_head(head, tmp_path, "eagle" if head.config.generation == 1 else "eagle3")
    vocabulary = Vocabulary()
    drafter = EagleDrafter(head, vocabulary, num_layers=LAYERS)
    assert isinstance(drafter, TreeDrafter)
    tokens = text(6)
    ids = np.arange(VOCAB) if head.token_ids is None else head.token_ids
    state = opened(drafter, head, tokens)
    length = state.cache.length
    (draft,) = drafter.propose_trees([state], [context(tokens, sampling)], [Shape(width=3, depth=3, nodes=9)], [StreamDraws(1)])
    assert len(draft) > 4
    assert draft.depth >= 2
    assert draft.parents is not None
    assert state.cache.length - length in (0, len(tokens) - 1 - length)  # nothing of the tree is left
    firsts = {}
    for place, parent in enumerate(draft.parents):
        firsts.setdefault(parent, place)
    for parent, place in firsts.items():
        path, node = [], parent
        while node >= 0:
            path.append(draft.tokens[node])
            node = draft.parents[node]
        before = [*tokens, *path[::-1]]
        logits = reference_logits(tmp_path, vocabulary, before, states_of(head, tokens[:-1]), len(tokens))
        if sampling.temperature:
            want = np.exp((logits - logits.max()) / sampling.temperature)
            full = np.zeros(VOCAB)
            full[ids] = want / want.sum()
            np.testing.assert_allclose(draft.rows[place].to_array(), full, atol=2e-5)
        else:
            assert draft.tokens[place] == int(ids[logits.argmax()])
