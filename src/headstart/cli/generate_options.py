"""The options of `headstart generate`, in the order of its help. Defaults come from `records`, where they are written once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import click

from headstart.cli.options import JSON, draft_options, listed
from headstart.records import Options, RuleName

__all__ = ["generate_options"]


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    return int(token), float(bias)


def _gamma(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value == "auto":
        return value
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a whole number nor 'auto'", ctx, param) from None


_SAMPLING = Options().sampling


def generate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Every option of `generate`, in the order of its help."""
    defaults = Options()
    decorators: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [
        click.argument("prompt", nargs=-1, metavar="[PROMPT | -]"),
        click.option(
            "--target",
            default="smollm2",
            show_default=True,
            metavar="REF",
            help="The model whose law is kept: smollm2, a .gguf file, a folder, or a hub id owner/name[@revision].",
        ),
        click.option(
            "--drafter",
            default="auto",
            show_default=True,
            metavar="D",
            help="Who guesses: none, ngram, suffix, model:REF, cross:REF (another vocabulary), skip:N (the target's first N "
            "layers), eagle:REF or medusa:REF (heads), auto (suffix, and behind it the target's head in the package), or A+B: "
            "A where it has three tokens to offer, else B.",
        ),
        draft_options,
        click.option(
            "--gamma",
            show_default="auto; 4 with --seed, a temperature and a rule other than coupled",
            callback=_gamma,
            metavar="N|auto",
            help="Tokens drafted a round; auto finds out, round by round, how many pay here, or none.",
        ),
        click.option(
            "--tree",
            default="none",
            show_default=True,
            metavar="WIDTHxDEPTH[:NODES]|auto|none",
            help="Draft trees instead of chains: 4x3 has up to 12 tokens, 3 deep; 4x6:8 up to 8, 6 deep; auto finds out, round "
            "by round, which tree or chain pays here, or none.",
        ),
        click.option(
            "--rule",
            type=click.Choice(get_args(RuleName)),
            help="How drafts are judged. All but typical keep the target's exact law; typical (Medusa's) is lossy, and its "
            "results say so. Default: block (token on trees), or coupled with --seed and a temperature.",
        ),
        click.option("--temperature", type=float, default=_SAMPLING.temperature, show_default=True, help="0 is greedy."),
        click.option(
            "--top-k", type=int, default=_SAMPLING.top_k, show_default="off", help="Sample among the K likeliest tokens."
        ),
        click.option(
            "--top-p",
            type=float,
            default=_SAMPLING.top_p,
            show_default="off",
            help="Sample among the likeliest tokens that hold mass P.",
        ),
        click.option(
            "--min-p", type=float, default=_SAMPLING.min_p, show_default="off", help="Drop tokens under P times the likeliest."
        ),
        click.option(
            "--typical-p",
            type=float,
            default=_SAMPLING.typical_p,
            show_default="off",
            help="Locally typical sampling with mass P.",
        ),
        click.option(
            "--repetition-penalty",
            type=float,
            default=_SAMPLING.repetition_penalty,
            show_default="off",
            help="Divides the logits of tokens in prompt and output.",
        ),
        click.option(
            "--presence-penalty",
            type=float,
            default=_SAMPLING.presence_penalty,
            show_default="off",
            help="Subtracted once from tokens in the output.",
        ),
        click.option(
            "--frequency-penalty",
            type=float,
            default=_SAMPLING.frequency_penalty,
            show_default="off",
            help="Subtracted for each time a token is in the output.",
        ),
        click.option(
            "--logit-bias",
            multiple=True,
            callback=listed(_bias, "of the form ID=BIAS"),
            metavar="ID=B",
            help="Added to a token's logit; a list, or repeated.",
        ),
        click.option(
            "--ban",
            multiple=True,
            callback=listed(int, "a token id"),
            metavar="ID",
            help="Never emit this token; a list, or repeated.",
        ),
        click.option(
            "--seed",
            type=int,
            help="Same seed, same text. With a temperature it selects the rule coupled, under which "
            "the text does not depend on the drafter.",
        ),
        click.option(
            "--max-tokens", type=int, default=defaults.max_tokens, show_default=True, help="Emit at most so many tokens."
        ),
        click.option(
            "--min-tokens", type=int, default=_SAMPLING.min_tokens, show_default=True, help="No end token before so many."
        ),
        click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be repeated."),
        click.option("--logprobs", type=int, metavar="N", help="Report log-probabilities, with N alternatives (with --json)."),
        click.option(
            "--chat/--raw",
            default=None,
            help="Wrap the prompt in the model's chat template, or don't. Default: chat where there is one.",
        ),
        click.option("--system", metavar="TEXT", help="System message of the chat."),
        click.option(
            "--engine",
            default="auto",
            show_default=True,
            help="auto (native for .gguf files and with --quantize), native or transformers.",
        ),
        click.option(
            "--dtype", default="auto", show_default=True, help="auto (bfloat16 where the hardware has it), float32 or bfloat16."
        ),
        click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda."),
        click.option("--threads", type=int, help="CPU threads."),
        click.option("--context", type=int, help="Tokens a sequence may hold; at most what the model allows."),
        click.option(
            "--quantize",
            metavar="q8_0|q4_0",
            help="Make a folder's matrices 8- or 4-bit at load, for the native engine; that changes the target.",
        ),
        click.option(
            "--refresh", is_flag=True, help="Measure again what rounds cost here, which gamma auto keeps from run to run."
        ),
        click.option("--offline", is_flag=True, help="Never fetch anything."),
        click.option("--show-draft", is_flag=True, help="Mark accepted, corrected and bonus tokens in the text."),
        click.option("--compare", is_flag=True, help="Also run plain decoding and report the gain."),
        JSON,
    ]
    for decorate in reversed(decorators):
        command = decorate(command)
    return command
