"""Medusa heads and draft models: what is validated is what decoding does, kills lose nothing, answers are used again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not hasattr(torch.optim, "Muon"):
    pytest.skip("training needs torch 2.9 or later", allow_module_level=True)

from headstart.checkpoints import MedusaHead, read_head, read_safetensors  # noqa: E402  (after the skips above)
from headstart.cli.main import run  # noqa: E402
from headstart.cli.train import read_training_prompts  # noqa: E402
from headstart.decode import Decoder, EndTokens, Request  # noqa: E402
from headstart.drafters import MedusaDrafter, ModelDrafter  # noqa: E402
from headstart.draws import StreamDraws  # noqa: E402
from headstart.errors import InputError, OptionError  # noqa: E402
from headstart.models.native import NativeModel  # noqa: E402
from headstart.probs import SamplingProcessor  # noqa: E402
from headstart.records import Sampling  # noqa: E402
from headstart.text import Tokenizer, check_same_vocabulary  # noqa: E402
from headstart.text.decoding import Decoding  # noqa: E402
from headstart.text.parts import Parts  # noqa: E402
from headstart.train import DraftOptions, EarlierRun, MedusaOptions, TrainOptions, train_draft, train_eagle, train_medusa  # noqa: E402
from headstart.train.corpus import batch_of  # noqa: E402
from headstart.train.draft_network import DraftNetwork  # noqa: E402
from headstart.train.rollouts import read_shard  # noqa: E402
from headstart.verify import rule_named  # noqa: E402
from tests.native.random_folder import save  # noqa: E402
from tests.native.random_gguf import shape_of, write  # noqa: E402
from tests.text.small import CHAT_TEMPLATE, byte_level_core  # noqa: E402
from tests.train.test_train import HEAD, questions, quiet  # noqa: E402

OPTIONS = TrainOptions(steps=6, depth=3, batch_tokens=120, warmup=2, bfloat16=False)
HEADS = MedusaOptions(draft_vocab=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A random network with six layers in Hugging Face form."""
    place = tmp_path_factory.mktemp("target")
    save(write(place / "m.gguf", replace(shape_of("llama", context=64), layers=6, hidden=64), "F32"), place / "folder")
    return place / "folder"


@pytest.fixture(scope="module")
def model(folder) -> NativeModel:
    """The same on the native engine."""
    return NativeModel.load(folder, threads=1)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A small tokenizer with a chat template and a start token."""
    core = byte_level_core()
    start, end = core.token_to_id("<s>"), core.token_to_id("<|end|>")
    return Tokenizer(
        Parts(
            source="small",
            core=core,
            decoding=Decoding.of(core, "small"),
            start_ids=(start,),
            end_ids=frozenset({end}),
            chat_template=CHAT_TEMPLATE,
            template_tokens={"bos_token": "<s>"},
        )
    )


def greedy_block_efficiency(model, drafter, held_out: Path, gamma: int) -> float:
    """Tokens per target call of real rounds on the greedy half of the held-out answers, whose texts they must repeat."""
    decoder = Decoder(model, drafter)
    tokens = rounds = 0
    for rollout in read_shard(held_out)[:5]:
        prompt = rollout.tokens[: rollout.num_prompt].tolist()
        request = Request(
            prompt, rule=rule_named("token"), draws=StreamDraws(0), max_tokens=len(rollout.tokens) - len(prompt), gamma=gamma,
            processor=SamplingProcessor(Sampling(), num_prompt=len(prompt), vocab_size=model.vocab_size), stopper=EndTokens([0]),
        )  # fmt: skip
        for _ in decoder.run([request]):
            pass
        assert request.tokens == rollout.tokens.tolist()
        tokens, rounds = tokens + len(request.output), rounds + request.stats.num_rounds
    return tokens / rounds


def test_medusa_heads_decode_as_they_were_validated(model, tmp_path) -> None:
    """Greedy tokens per target call equal those of real rounds; one projection, trained with them, serves all heads."""
    result = train_medusa(model, questions(model), out=tmp_path, heads=HEADS, options=OPTIONS, tell=quiet)
    head = read_head(tmp_path / "head")
    assert isinstance(head, MedusaHead)
    assert (head.num_heads, head.draft_vocab_size, len(result["overlap"])) == (3, 30, 3)
    stored = read_safetensors(tmp_path / "head" / "model.safetensors")
    assert [name for name in stored if name.startswith("lm_heads")] == ["lm_heads.0.weight"]
    assert head.token_ids is not None
    assert stored["lm_heads.0.weight"].shape == model.head_rows(head.token_ids).shape
    drafter = MedusaDrafter(head, num_layers=model.num_layers)
    measured = greedy_block_efficiency(model, drafter, tmp_path / "held-out.safetensors", 3)
    assert measured == pytest.approx(result["greedy_block_efficiency"], rel=0.05)
    assert json.loads((tmp_path / "report.json").read_text())["history"][-1] == result


def test_training_medusa_heads_raises_their_overlap(model, tmp_path) -> None:
    """In a hundred steps, on answers they are trained on."""
    begun = train_medusa(model, questions(model), out=tmp_path, heads=HEADS, options=replace(OPTIONS, steps=1), tell=quiet)
    longer = replace(OPTIONS, steps=100, learning_rate=1e-2)
    after = train_medusa(model, EarlierRun(folder=tmp_path), out=tmp_path / "long", heads=HEADS, options=longer, tell=quiet)
    assert after["loss"][0] < begun["loss"][0] - 0.05
    assert not (tmp_path / "long" / "data").exists()


def test_a_draft_model_decodes_as_it_was_validated(model, folder, tokenizer, tmp_path) -> None:
    """The folder runs natively, with the layers asked for and the target's tokenizer; its rounds are those computed."""
    options, draft = replace(OPTIONS, depth=1), DraftOptions(num_layers=3)
    how = {"weights": folder, "tokenizer": tokenizer, "options": options, "tell": quiet}
    result = train_draft(model, questions(model), out=tmp_path, draft=draft, **how)
    made = NativeModel.load(tmp_path / "draft", threads=1)
    assert (made.num_layers, made.vocab_size) == (3, model.vocab_size)
    measured = greedy_block_efficiency(model, ModelDrafter(made), tmp_path / "held-out.safetensors", 4)
    assert measured == pytest.approx(result["greedy_block_efficiency"], rel=0.05)
    assert len(set(result["overlap"])) == 1
    again = Tokenizer.from_folder(tmp_path / "draft")
    check_same_vocabulary(tokenizer, again)
    assert again.encode("the cat <s> naïve! 東京") == tokenizer.encode("the cat <s> naïve! 東京")
    assert again.encode_chat([{"role": "user", "content": "hi"}]) == tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert (again.end_ids, again.start_ids) == (tokenizer.end_ids, tokenizer.start_ids)
    for changed, match in ((DraftOptions(num_layers=2), "another kind or size"), (DraftOptions(num_layers=6), "from 1 to 5")):
        with pytest.raises(OptionError, match=match):
            train_draft(model, questions(model), out=tmp_path, draft=changed, **how)


def test_a_draft_model_begins_nearer_to_the_target(model, folder, tmp_path) -> None:
    """The fitted start brings its outputs nearer to the target's final hidden states than its layers alone do."""
    rollouts = questions(model).answers(model, layers=(model.num_layers,), out=tmp_path, seed=0, tell=quiet).training
    embeddings = torch.from_numpy(model.embeddings(range(model.vocab_size)))
    network, batch = DraftNetwork(folder, 2), batch_of(rollouts, (-1,))

    def off() -> float:
        with torch.inference_mode():
            return float((network.outputs(batch, embeddings, 1)[0] - batch.finals).pow(2).mean())

    before = off()
    network.begin(rollouts, embeddings)
    after = off()
    assert after < 0.9 * before
    network.begin(rollouts, embeddings)
    assert off() == pytest.approx(after, rel=1e-4)  # least squares: there is nothing more to gain


DYING = """
import os, signal, sys
from pathlib import Path
from headstart.models.native import NativeModel
from headstart.train import train_medusa
from headstart.train.loop import Trainer
from tests.train.test_kinds import HEADS, OPTIONS
from tests.train.test_train import questions, quiet

left, replace, run = int(sys.argv[3]), os.replace, Trainer.run

def dying(*paths):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*paths)

os.replace = dying
Trainer.run = lambda self, **how: run(self, **{**how, "every": 1})
model = NativeModel.load(sys.argv[1], threads=1)
train_medusa(model, questions(model), out=Path(sys.argv[2]), heads=HEADS, options=OPTIONS, tell=quiet)
"""


def test_kill_9_loses_nothing(model, folder, tmp_path) -> None:
    """Killed as a shard is written, and as a state is saved: called again, it ends with the head of a run left alone."""
    train_medusa(model, questions(model), out=tmp_path / "whole", heads=HEADS, options=OPTIONS, tell=quiet)
    for left in (2, 5):
        argv = [sys.executable, "-c", DYING, str(folder), str(tmp_path / "killed"), str(left)]
        done = subprocess.run(argv, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
    train_medusa(model, questions(model), out=tmp_path / "killed", heads=HEADS, options=OPTIONS, tell=quiet)
    a, b = read_head(tmp_path / "whole" / "head"), read_head(tmp_path / "killed" / "head")
    assert all(a.weights[name].same_as(b.weights[name]) for name in a.weights)


def test_answers_are_used_again_where_they_fit(model, tmp_path) -> None:
    """Those of an EAGLE run serve Medusa heads; hidden states that are not there, and folders without a run, are refused."""
    options = replace(OPTIONS, steps=1)
    train_eagle(model, questions(model), out=tmp_path / "a", head=HEAD, options=options, tell=quiet)
    earlier = EarlierRun(folder=tmp_path / "a")
    again = train_medusa(model, earlier, out=tmp_path / "b", heads=HEADS, options=options, tell=quiet)
    own = train_medusa(model, questions(model), out=tmp_path / "c", heads=HEADS, options=options, tell=quiet)
    assert again | {"seconds": 0} == own | {"seconds": 0}
    with pytest.raises(InputError, match="holds 1 hidden states a token, 64 wide, wanted 4"):
        train_eagle(model, EarlierRun(folder=tmp_path / "c"), out=tmp_path / "d", head=HEAD, options=options, tell=quiet)
    with pytest.raises(InputError, match=r"`answers` .* holds no answers of a run"):
        train_medusa(model, EarlierRun(folder=tmp_path), out=tmp_path / "e", heads=HEADS, options=options, tell=quiet)


def test_prompts_of_a_file(tmp_path) -> None:
    """Text between dashes and .jsonl give the same; a tenth is held out; `self` has its own 48."""
    texts = [f"Prompt {number}\nof two lines" for number in range(25)]
    (tmp_path / "p.txt").write_text("\n---\n".join(texts))
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in texts))
    training, held_out = read_training_prompts(str(tmp_path / "p.txt"), 0, 0)
    assert (training, held_out) == read_training_prompts(str(tmp_path / "p.jsonl"), 0, 0)
    assert held_out == [texts[0], texts[10], texts[20]]
    assert sorted([*training, *held_out]) == sorted(texts)
    assert list(map(len, read_training_prompts("self", 60, 0))) == [60, 48]


@pytest.mark.parametrize("kind", ["eagle", "medusa", "draft"])
@pytest.mark.parametrize(
    ("data", "told"),
    [(None, "`data`"), ("one prompt", "20 prompts or more, got 1"), ("\n---\n" * 3, "at least one prompt")],
    ids=["missing", "too few", "empty"],
)
def test_bad_data_is_one_line(kind, data, told, tmp_path, capsys) -> None:
    """Before anything is loaded."""
    path = tmp_path / "p.txt"
    if data is not None:
        path.write_text(data)
    assert run(["train", kind, "--data", str(path), "--out", str(tmp_path / "run")]) != 0
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
