"""Training: nothing is lost by a kill, what is validated is what decoding does, and the hand-written loss is the loss."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
if not hasattr(torch.optim, "Muon"):
    pytest.skip("training needs torch 2.9 or later", allow_module_level=True)

from headstart.checkpoints import EagleHead, Tensor, read_head  # noqa: E402  (after the skips above)
from headstart.cli.train import command  # noqa: E402
from headstart.decode import Decoder, EndTokens, Request  # noqa: E402
from headstart.drafters import EagleDrafter  # noqa: E402
from headstart.draws import StreamDraws  # noqa: E402
from headstart.errors import InputError, OptionError  # noqa: E402
from headstart.interfaces import Ask  # noqa: E402
from headstart.models.native import NativeModel  # noqa: E402
from headstart.probs import SamplingProcessor  # noqa: E402
from headstart.records import Sampling  # noqa: E402
from headstart.train import HeadOptions, Questions, TrainOptions, train_eagle  # noqa: E402
from headstart.train.corpus import draft_vocabulary, epoch_order  # noqa: E402
from headstart.train.loop import soft_losses  # noqa: E402
from headstart.train.prompts import CATEGORIES, HELD_OUT, MOST_PROMPTS, training_prompts  # noqa: E402
from headstart.train.rollouts import Rollout, Turn, read_shard, write_answers, write_shard  # noqa: E402
from headstart.train.validation import expected_rounds  # noqa: E402
from headstart.verify import rule_named  # noqa: E402
from tests.native.random_gguf import shape_of, write  # noqa: E402

OPTIONS = TrainOptions(steps=6, depth=2, batch_tokens=120, warmup=2, bfloat16=False)
HEAD = HeadOptions(draft_vocab=30, intermediate=32)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> NativeModel:
    """A random network with six layers, as `layers_of` an EAGLE-3 head needs."""
    shape = replace(shape_of("llama", context=64), layers=6, hidden=64)
    return NativeModel.load(write(tmp_path_factory.mktemp("model") / "m.gguf", shape, "F32").path, threads=1)


def prompts(count: int, seed: int, vocab: int) -> list[list[int]]:
    """Random prompts."""
    rng = np.random.default_rng(seed)
    return [rng.integers(vocab, size=int(rng.integers(3, 8))).tolist() for _ in range(count)]


def questions(model: NativeModel, seed: int = 0) -> Questions:
    """A few prompts."""
    return Questions(
        prompts=prompts(14, seed, model.vocab_size),
        held_out=prompts(5, seed + 1, model.vocab_size),
        end_ids=frozenset({0}),
        max_tokens=16,
    )


def quiet(stage, fraction) -> None:
    """Tell nobody."""


def trained(model: NativeModel, out, steps: int = 6):
    """A run in `out`."""
    return train_eagle(model, questions(model), out=out, head=HEAD, options=replace(OPTIONS, steps=steps), tell=quiet)


def test_a_killed_run_loses_nothing(model, tmp_path, monkeypatch) -> None:
    """Stopped by an exception at any step and called again, it ends with the very head of a run that was left alone."""
    trained(model, tmp_path / "whole")
    from headstart.train.loop import Trainer

    step, calls = Trainer._one_step, itertools.count()

    def dying(self):
        if next(calls) in (1, 4):
            raise KeyboardInterrupt
        return step(self)

    run = Trainer.run
    monkeypatch.setattr(Trainer, "_one_step", dying)
    monkeypatch.setattr(Trainer, "run", lambda self, **how: run(self, **{**how, "every": 1}))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            trained(model, tmp_path / "killed")
    trained(model, tmp_path / "killed")
    a, b = read_head(tmp_path / "whole" / "head"), read_head(tmp_path / "killed" / "head")
    assert a.token_ids.tolist() == b.token_ids.tolist()
    for name in a.weights:
        assert a.weights[name].same_as(b.weights[name]), name


def test_a_device_there_is_not_is_refused(model, tmp_path) -> None:
    """By name and with the way out; on the command line before the target is asked anything."""
    for device, match in (("tpu", "'auto', 'cpu', 'cuda' or 'cuda:N', got 'tpu'"), ("cuda:77", "not available.*--device cpu")):
        with pytest.raises(OptionError, match=match):
            train_eagle(model, questions(model), out=tmp_path, head=HEAD, options=OPTIONS, device=device, tell=quiet)
        done = CliRunner().invoke(command, ["eagle", "--target", "missing.gguf", "--out", "x", "--device", device])
        assert isinstance(done.exception, OptionError)
    assert not (tmp_path / "state.pt").exists()


def test_a_finished_run_can_be_made_longer(model, tmp_path) -> None:
    """It goes on from before the learning rate fell; other options than before are refused."""
    trained(model, tmp_path, steps=4)
    result = trained(model, tmp_path, steps=8)
    assert result["step"] == 8
    with pytest.raises(OptionError, match="`depth` was 2"):
        train_eagle(model, questions(model), out=tmp_path, head=HEAD, options=replace(OPTIONS, depth=3), tell=quiet)
    other, longer = (replace(HEAD, draft_vocab=29), replace(HEAD, intermediate=48)), replace(OPTIONS, steps=8)
    with pytest.raises(OptionError, match="`draft-vocab` was 30"):
        train_eagle(model, questions(model), out=tmp_path, head=other[0], options=longer, tell=quiet)
    with pytest.raises(OptionError, match="another kind or size of network"):
        train_eagle(model, questions(model), out=tmp_path, head=other[1], options=longer, tell=quiet)
    (tmp_path / "state.pt").write_bytes((tmp_path / "state.pt").read_bytes()[:-200])
    with pytest.raises(InputError, match="not a whole state"):
        trained(model, tmp_path, steps=8)


def test_what_is_validated_is_what_decoding_does(model, tmp_path) -> None:
    """Greedy tokens per target call on the held-out prompts, computed without a model, equal those of real rounds."""
    result = trained(model, tmp_path)
    head = read_head(tmp_path / "head")
    assert head.config.quantize == "q4_0"
    full = EagleHead(
        config=replace(head.config, quantize="q8_0"),
        weights={k: Tensor.of(v.floats()) for k, v in head.weights.items()},
        token_ids=head.token_ids,
    )
    decoder = Decoder(model, EagleDrafter(full, model, num_layers=model.num_layers))
    tokens = rounds = 0
    for rollout in read_shard(tmp_path / "held-out.safetensors")[:5]:
        prompt = rollout.tokens[: rollout.num_prompt].tolist()
        request = Request(
            prompt, rule=rule_named("token"), draws=StreamDraws(0), max_tokens=len(rollout.tokens) - len(prompt), gamma=4,
            processor=SamplingProcessor(Sampling(), num_prompt=len(prompt), vocab_size=model.vocab_size), stopper=EndTokens([0]),
        )  # fmt: skip
        for _ in decoder.run([request]):
            pass
        assert request.tokens == rollout.tokens.tolist()  # the text is the target's own
        tokens, rounds = tokens + len(request.output), rounds + request.stats.num_rounds
    # The shipped weights are rounded to half precision and a validated round ends at the end of the text: close, not equal.
    assert tokens / rounds == pytest.approx(result["greedy_block_efficiency"], rel=0.05)


def test_rounds_expected_are_an_average_over_all_cuts() -> None:
    """By brute force over every outcome of every token, for random chances; certain ones are counts."""
    rng = np.random.default_rng(0)
    for gamma, count in ((1, 4), (2, 5), (3, 4)):
        accept = rng.random((gamma, count))
        total = 0.0
        for outcome in itertools.product((0, 1), repeat=gamma * count):
            hits = np.array(outcome).reshape(gamma, count)
            weight = np.prod(np.where(hits, accept, 1 - accept))
            place = rounds = 0
            while place < count:
                kept = 0
                while kept < gamma and place + kept < count and hits[kept, place + kept]:
                    kept += 1
                place, rounds = place + kept + 1, rounds + 1
            total += weight * rounds
        assert expected_rounds(accept) == pytest.approx(total, abs=1e-12)
    assert expected_rounds(np.ones((4, 10))) == 2
    assert expected_rounds(np.zeros((4, 10))) == 10


@pytest.mark.parametrize("far", [0.3, 3.0])
@pytest.mark.parametrize("own_rows", [False, True])
def test_the_loss_and_its_slope_are_torch_s_own(far: float, own_rows: bool) -> None:
    """Against autograd, in chunks and weighted by depth, for rows near the target's and far from them; by a projection of its own
    too, which the target's rows do not know."""
    torch.manual_seed(0)
    finals, rows = torch.randn(300, 8) * 2, torch.randn(20, 8)
    outputs = [(finals + far * torch.randn(300, 8)).requires_grad_() for _ in range(2)]
    own = (rows + 0.3 * torch.randn(20, 8)).requires_grad_() if own_rows else rows
    losses, slopes, own_slope = soft_losses(outputs, finals, rows, [0.7, 0.3], False, own_rows=own if own_rows else None)
    wanted = torch.softmax(finals @ rows.T, -1)
    for output, slope, mean, weight in zip(outputs, slopes, losses, [0.7, 0.3], strict=True):
        logs = torch.log_softmax(output @ own.T, -1)
        entropies, overlaps = -(wanted * logs).sum(-1), torch.minimum(wanted, logs.exp()).sum(-1)
        assert mean == pytest.approx(float(entropies.detach().mean()), rel=1e-5)
        total = 0.0
        for first in range(0, 300, 128):  # rows worked on together share how much either part counts
            part = slice(first, first + 128)
            share = float(torch.exp(-3 * overlaps[part].detach().mean()))
            total = total + share * entropies[part].sum() + (1 - share) * (1 - overlaps[part]).sum()
        (weight * total / 300).backward()
        torch.testing.assert_close(slope, output.grad, rtol=1e-4, atol=1e-6)
    if own_rows:
        torch.testing.assert_close(own_slope, own.grad, rtol=1e-4, atol=1e-6)
    else:
        assert own_slope is None


def test_answers_are_the_target_s_own(model, tmp_path) -> None:
    """Greedy answers are its argmax, hidden states those of its passes; a shard gives back what was put in."""
    asked = prompts(4, 3, model.vocab_size)
    layers = (2, 3, 6)
    written = write_answers(model, asked, layers=layers, max_tokens=9, temperatures=[0, 0, 1, 1], end_ids=frozenset({0}), seed=1)
    write_shard(tmp_path / "a.safetensors", written)
    for before, after in zip(written, read_shard(tmp_path / "a.safetensors"), strict=True):
        assert before.tokens.tolist() == after.tokens.tolist()
        assert before.num_prompt == after.num_prompt
        assert before.features.tolist() == after.features.tolist()
    for place, rollout in enumerate(written):
        tokens = rollout.tokens.tolist()
        (scored,) = model.score([Ask(cache=model.open(), tokens=tokens[:-1], feature_layers=layers)])
        joined = rollout.features.swapaxes(0, 1).reshape(len(tokens) - 1, -1)
        np.testing.assert_allclose(joined, scored.features.astype(np.float16), rtol=1e-3, atol=1e-3)
        if place < 2:
            assert scored.logits.argmax(-1)[rollout.num_prompt - 1 :].tolist() == tokens[rollout.num_prompt :]
    (tmp_path / "b.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:-9])
    with pytest.raises(InputError, match="not a shard"):
        read_shard(tmp_path / "b.safetensors")


def test_the_target_asks_itself(model, tmp_path) -> None:
    """Requests begin and end as the template has it and are not trained on; what is read again is what was written."""
    turn = Turn.of(lambda text: [1, 2, *(40 + ord(letter) % 8 for letter in text), 3, 4, 5])
    assert turn == Turn(before=(1, 2), after=(3, 4, 5))
    assert Turn.of(lambda text: [9 + len(text), 3]) is None  # nothing stands before
    turn = replace(turn, longest=6)
    how = {"layers": (2, 6), "max_tokens": 9, "temperatures": [0.0] * 12, "end_ids": frozenset({0, 7}), "seed": 3}
    written = write_answers(model, [turn.before] * 12, **how, turn=turn)
    asked = [r.tokens[: r.num_prompt].tolist() for r in written]
    assert all(tokens[:2] == [1, 2] and tokens[-3:] == [3, 4, 5] for tokens in asked)
    assert {len(tokens) for tokens in asked} <= set(range(5, 12))
    assert len({tuple(tokens) for tokens in asked}) > 6  # drawn, though the answers are greedy
    assert not any({0, 7} & set(tokens[2:-3]) for tokens in asked)
    for rollout in written:
        tokens = rollout.tokens.tolist()
        (scored,) = model.score([Ask(cache=model.open(), tokens=tokens[:-1], feature_layers=(2, 6))])
        assert scored.logits.argmax(-1)[rollout.num_prompt - 1 :].tolist() == tokens[rollout.num_prompt :]
        assert 1 <= len(tokens) - rollout.num_prompt <= 9
    with pytest.raises(OptionError, match="cannot make up requests, got 5"):
        replace(questions(model), own=5)


def test_more_answers_join_at_once(model, tmp_path, monkeypatch) -> None:
    """A run that goes on with more answers begins an epoch of all of them; one that goes on with the same does not."""
    from headstart.train.loop import Trainer

    met: list[tuple[int, int, int]] = []
    step = Trainer._one_step
    monkeypatch.setattr(Trainer, "_one_step", lambda self: met.append((self.epoch, self.place, len(self.rollouts))) or step(self))
    trained(model, tmp_path, steps=2)
    with_more = replace(questions(model), own=3, turn=Turn(before=(1, 2), after=(3, 4), longest=5))
    for _ in range(2):
        train_eagle(model, with_more, out=tmp_path, head=HEAD, options=replace(OPTIONS, steps=8), tell=quiet)
    assert (tmp_path / "data" / "own-00000.safetensors").exists()
    assert [m[2] > 14 for m in met] == [False] * 2 + [True] * (len(met) - 2)
    assert met[2][0] > met[1][0]
    assert met[2][1] == 0


def test_an_epoch_meets_every_sequence_once() -> None:
    """In an order that depends on seed and epoch only; batches keep to their size where one sequence fits."""
    lengths = np.random.default_rng(0).integers(5, 60, size=50).tolist()
    order = epoch_order(lengths, 128, 3, 1)
    assert sorted(number for batch in order for number in batch) == list(range(50))
    assert order == epoch_order(lengths, 128, 3, 1) != epoch_order(lengths, 128, 3, 2)
    assert all(max(lengths[i] for i in batch) * len(batch) <= 128 for batch in order)


def test_the_draft_vocabulary_is_the_most_frequent_of_the_answers() -> None:
    """Prompts do not count; ties go to the lower id."""
    features = np.zeros((1, 8, 4), dtype=np.float16)
    rollout = Rollout(tokens=np.array([9, 9, 9, 5, 5, 7, 2, 7, 5], dtype=np.int32), num_prompt=3, features=features)
    assert draft_vocabulary([rollout], 10, 4).tolist() == [0, 2, 5, 7]


def test_held_out_prompts_never_enter_training() -> None:
    """48 of them, eight a category; training prompts differ from them and from one another, and a longer list begins alike."""
    assert len(HELD_OUT) == 48
    assert [sum(prompt.category == name for prompt in HELD_OUT) for name in CATEGORIES] == [8] * 6
    some, more = training_prompts(300, 5), training_prompts(900, 5)
    assert more[:300] == some
    assert len({prompt.text for prompt in more}) == 900
    assert not {prompt.text for prompt in HELD_OUT} & {prompt.text for prompt in more}
    assert not any("{" in prompt.text for prompt in more)
    with pytest.raises(OptionError, match=str(MOST_PROMPTS)):
        training_prompts(MOST_PROMPTS + 1, 0)
