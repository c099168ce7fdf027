"""`headstart train`: draft heads from the target's own answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from headstart.cli.options import JSON, write_json

__all__ = ["command"]


@click.group("train")
def command() -> None:
    """Train a draft head on the target's own answers."""


@command.command("eagle")
@click.option(
    "--target",
    default="smollm2",
    show_default=True,
    metavar="REF",
    help="The model to draft for; its engine must be native or transformers.",
)
@click.option(
    "--data",
    default="self",
    show_default=True,
    metavar="FILE|self",
    help="Prompts to answer: self for Headstart's own, or a file as for plan --prompts.",
)
@click.option(
    "--out",
    required=True,
    metavar="DIR",
    help="Folder of this run; the same call goes on where it stopped. The head is in DIR/head.",
)
@click.option(
    "--num-prompts", type=click.IntRange(min=1), default=2304, show_default=True, help="With --data self, how many prompts."
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=600,
    show_default=True,
    help="Batches to train on; more may be asked for later.",
)
@click.option(
    "--depth", type=click.IntRange(1, 8), default=3, show_default=True, help="Tokens deep the head is run on its own output."
)
@click.option("--draft-vocab", type=click.IntRange(min=16), default=8192, show_default=True, help="Tokens the head can draft.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the answers and of the order of batches."
)
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.")
@click.option("--offline", is_flag=True, help="Never fetch anything.")
@JSON
def eagle(target: str, data: str, out: str, as_json: bool, **options: Any) -> None:
    """Train an EAGLE-3 head: the target answers prompts, the head learns to guess its hidden states.

    Needs the extra `transformers`. A tenth of a file's prompts, or Headstart's own 48, are held out and measured on: overlap
    by depth, and tokens per target call with chains of four. The curves are in DIR/report.json and DIR/report.png."""
    from headstart.cli.view import Loading
    from headstart.errors import OptionError
    from headstart.interfaces import FeatureModel
    from headstart.loading import load
    from headstart.prompts import read_prompts
    from headstart.train import HeadOptions, TrainOptions, train_eagle
    from headstart.train.prompts import HELD_OUT, training_prompts

    if data == "self":
        texts = [prompt.text for prompt in training_prompts(options["num_prompts"], options["seed"])]
        held_out = [prompt.text for prompt in HELD_OUT]
    else:
        texts = [prompt.text for prompt in read_prompts(data)]
        if len(texts) < 20:
            raise OptionError(f"`data` must hold 20 prompts or more, got {len(texts)} in {data}; or use --data self")
        held_out, texts = texts[::10], [text for place, text in enumerate(texts) if place % 10]
    with Loading() as progress:
        llm = load(target, drafter="none", threads=options["threads"], offline=options["offline"], progress=progress)
        if not isinstance(llm.model, FeatureModel) or llm.tokenizer is None:
            raise OptionError(f"`target` must hand out hidden states and have a tokenizer, got {target!r}")
        result = train_eagle(
            llm.model,
            prompts=[llm.prompt_ids(text) for text in texts],
            held_out=[llm.prompt_ids(text) for text in held_out],
            end_ids=llm.tokenizer.end_ids,
            out=Path(out),
            head=HeadOptions(draft_vocab=options["draft_vocab"]),
            options=TrainOptions(steps=options["steps"], depth=options["depth"], seed=options["seed"]),
            tell=progress,
        )
    document = {"target": target, "head": str(Path(out) / "head"), **result}
    if as_json:
        write_json(document)
        return
    click.echo(f"head: {document['head']}  (use it with --drafter eagle:{document['head']})")
    click.echo("overlap by depth: " + " ".join(f"{value:.3f}" for value in result["overlap"]))
    for name, label in (("greedy_block_efficiency", "greedy"), ("sampled_block_efficiency", "at temperature 1")):
        if result.get(name):
            click.echo(f"tokens per target call {label}, chains of four: {result[name]:.2f}")
