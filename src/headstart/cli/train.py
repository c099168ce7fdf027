"""`headstart train`: draft heads and draft models from the target's own answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from headstart.cli.options import JSON, write_json

__all__ = ["command", "read_training_prompts"]

_FEWEST_PROMPTS = 20


@click.group("train")
def command() -> None:
    """Train a drafter on the target's own answers."""


def _run_options(steps: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What every kind of training is told; `steps` is its default."""
    positive = click.IntRange(min=1)
    decorators = [
        click.option(
            "--target",
            default="smollm2",
            show_default=True,
            metavar="REF",
            help="The model to draft for; its engine must be native or transformers.",
        ),
        click.option(
            "--data",
            default="self",
            show_default=True,
            metavar="FILE|self",
            help="Prompts to answer: self for Headstart's own, or a file as for plan --prompts.",
        ),
        click.option(
            "--out",
            required=True,
            metavar="DIR",
            help="Folder of this run; the same call goes on where it stopped.",
        ),
        click.option(
            "--answers",
            metavar="DIR",
            help="Folder of an earlier run for the same target: use its answers again and ask nothing.",
        ),
        click.option("--num-prompts", type=positive, default=768, show_default=True, help="With --data self, how many prompts."),
        click.option(
            "--own-prompts",
            type=click.IntRange(min=0),
            show_default="with --data self, twice --num-prompts",
            help="How many requests more the target makes up itself; it must have a chat template.",
        ),
        click.option(
            "--max-tokens",
            type=click.IntRange(min=16),
            default=192,
            show_default=True,
            help="Of each answer; answers that are there already stay as they are.",
        ),
        click.option(
            "--steps",
            type=positive,
            default=steps,
            show_default=True,
            help="Batches to train on; more may be asked for later.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Of the answers and of the order of batches.",
        ),
        click.option("--threads", type=positive, help="CPU threads."),
        click.option(
            "--device",
            default="auto",
            show_default=True,
            metavar="auto|cpu|cuda[:N]",
            help="What trains; auto: a GPU where torch sees one, which the transformers engine answers on too.",
        ),
        click.option("--offline", is_flag=True, help="Never fetch anything."),
        JSON,
    ]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


@command.command("eagle")
@_run_options(600)
@click.option(
    "--depth", type=click.IntRange(1, 8), default=3, show_default=True, help="Tokens deep the head is run on its own output."
)
@click.option("--draft-vocab", type=click.IntRange(min=16), default=8192, show_default=True, help="Tokens the head can draft.")
def eagle(depth: int, draft_vocab: int, **values: Any) -> None:
    """Train an EAGLE-3 head: the target answers prompts, the head learns to guess its hidden states.

    Needs the extras `train` and `transformers`. A tenth of a file's prompts, or Headstart's own 48, are held out and measured
    on: overlap by depth, and tokens per target call with chains of four. The head is in DIR/head, the curves are in
    DIR/report.json and DIR/report.png."""
    from headstart.train import HeadOptions, train_eagle

    _run(
        values,
        lambda given, options: train_eagle(head=HeadOptions(draft_vocab=draft_vocab), options=options(depth), **given),
        kind="eagle",
        folder="head",
    )


@command.command("medusa")
@_run_options(600)
@click.option("--heads", type=click.IntRange(1, 8), default=4, show_default=True, help="Tokens ahead that are guessed at once.")
@click.option("--layers", type=click.IntRange(1, 4), default=1, show_default=True, help="Residual blocks in each head.")
@click.option("--draft-vocab", type=click.IntRange(min=16), default=8192, show_default=True, help="Tokens the heads can draft.")
def medusa(heads: int, layers: int, draft_vocab: int, **values: Any) -> None:
    """Train Medusa heads beside the frozen target: each guesses one token further from the target's last hidden state.

    Needs the extras `train` and `transformers`. A tenth of a file's prompts, or Headstart's own 48, are held out and measured
    on: overlap by depth, and tokens per target call. The heads are in DIR/head, in vLLM's form, and one projection, trained with
    them, serves all of them; the curves are in DIR/report.json and DIR/report.png."""
    from headstart.train import MedusaOptions, train_medusa

    _run(
        values,
        lambda given, options: train_medusa(
            heads=MedusaOptions(draft_vocab=draft_vocab, num_layers=layers), options=options(heads), **given
        ),
        kind="medusa",
        folder="head",
    )


@command.command("draft")
@_run_options(400)
@click.option("--layers", type=click.IntRange(min=1), default=2, show_default=True, help="Of the draft model.")
@click.option(
    "--draft-vocab",
    type=click.IntRange(min=16),
    show_default="all",
    help="Train for its N most frequent tokens alone; draft with the same --draft-vocab.",
)
def draft(layers: int, draft_vocab: int | None, **values: Any) -> None:
    """Train a small draft model, begun as the target's own first layers and its last, on the target's rows.

    Needs the extras `train` and `transformers`. A tenth of a file's prompts, or Headstart's own 48, are held out and measured
    on: overlap, and tokens per target call with chains of four. The model is the Hugging Face folder DIR/draft; the curves are
    in DIR/report.json and DIR/report.png."""
    from headstart.train import DraftOptions, train_draft

    def train(given: dict[str, Any], options: Callable[[int], Any]) -> dict[str, Any]:
        made = DraftOptions(num_layers=layers, draft_vocab=draft_vocab)
        return train_draft(draft=made, options=options(1), **given)

    _run(values, train, kind="model", folder="draft", reads_weights=True)


def _run(
    values: dict[str, Any],
    train: Callable[[dict[str, Any], Callable[[int], Any]], dict[str, Any]],
    *,
    kind: str,
    folder: str,
    reads_weights: bool = False,
) -> None:
    """Load the target, train, and say how it went."""
    from headstart.cli.view import Loading
    from headstart.errors import OptionError
    from headstart.interfaces import FeatureModel
    from headstart.loading import load_many
    from headstart.models.checkpoint import device_of
    from headstart.train import TrainOptions

    target, out, device = values["target"], Path(values["out"]), values["device"]
    device_of(device)  # refused before the target answers for half an hour
    given: dict[str, Any] = {"out": out, "device": device}
    make_source = _source(values)
    with Loading() as progress:
        where = {"device": "cpu" if device == "cpu" else "auto", "threads": values["threads"], "offline": values["offline"]}
        (loaded,) = load_many(target, ["none"], progress=progress, **where)
        llm = loaded.llm
        if not isinstance(llm.model, FeatureModel) or llm.tokenizer is None:
            raise OptionError(f"`target` must hand out hidden states and have a tokenizer, got {target!r}")
        given |= {"target": llm.model, "source": make_source(llm), "tell": progress}
        if reads_weights:
            given |= {"weights": loaded.source, "tokenizer": llm.tokenizer}
        steps, seed = values["steps"], values["seed"]
        result = train(given, lambda depth: TrainOptions(steps=steps, depth=depth, seed=seed))
    name = "model" if kind == "model" else "head"
    document = {"target": target, name: str(out / folder), **result}
    if values["as_json"]:
        write_json(document)
        return
    click.echo(f"{name}: {document[name]}  (use it with --drafter {kind}:{document[name]})")
    click.echo("overlap by depth: " + " ".join(f"{value:.3f}" for value in result["overlap"]))
    for measure, label in (("greedy_block_efficiency", "greedy"), ("sampled_block_efficiency", "at temperature 1")):
        if result.get(measure):
            click.echo(f"tokens per target call {label}, chains of {len(result['overlap'])}: {result[measure]:.2f}")


def _source(values: dict[str, Any]) -> Callable[[Any], Any]:
    """Where answers come from, once the target (an LLM) is loaded; what can be refused is refused before."""
    from headstart.errors import OptionError
    from headstart.train import EarlierRun, Questions, Turn

    data, count, own = values["data"], values["num_prompts"], values["own_prompts"]
    if values["answers"]:
        for name, value in (("data", None if data == "self" else data), ("own-prompts", own)):
            if value is not None:
                raise OptionError(f"`answers` are those of an earlier run, so `{name}` must be left out, got {value!r}")
        earlier = EarlierRun(folder=Path(values["answers"]))
        return lambda llm: earlier
    texts, held_out = read_training_prompts(data, count, values["seed"])

    def questions(llm: Any) -> Questions:
        turn = Turn.of(llm.prompt_ids) if llm.tokenizer.has_chat_template else None
        return Questions(
            prompts=[llm.prompt_ids(text) for text in texts],
            held_out=[llm.prompt_ids(text) for text in held_out],
            end_ids=llm.tokenizer.end_ids,
            max_tokens=values["max_tokens"],
            own=own if own is not None else 2 * count if turn and data == "self" else 0,
            turn=turn,
        )

    return questions


def read_training_prompts(data: str, count: int, seed: int) -> tuple[list[str], list[str]]:
    """Texts to train on, and texts held out."""
    from headstart.errors import OptionError
    from headstart.prompts import read_prompts
    from headstart.train.prompts import HELD_OUT, training_prompts

    if data == "self":
        return [prompt.text for prompt in training_prompts(count, seed)], [prompt.text for prompt in HELD_OUT]
    try:
        texts = [prompt.text for prompt in read_prompts(data)]
    except OSError as error:
        raise OptionError(f"`data` {data!r} cannot be read: {error.strerror or error}; name a file of prompts, or self") from None
    if len(texts) < _FEWEST_PROMPTS:
        raise OptionError(f"`data` must hold {_FEWEST_PROMPTS} prompts or more, got {len(texts)} in {data}; or use --data self")
    return [text for place, text in enumerate(texts) if place % 10], texts[::10]
