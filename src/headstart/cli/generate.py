"""`headstart generate`: text from a prompt, streamed, with what speculation gained."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from headstart.cli.generate_options import generate_options
from headstart.cli.options import DRAFT_OPTIONS, say, write_json
from headstart.cli.view import CountView, DraftView, Loading, draft_view, scheduled_start, summary
from headstart.errors import HeadstartError, InputError, OptionError
from headstart.generation import Piece
from headstart.records import Options

__all__ = ["command"]

_LOAD_OPTIONS = (
    "target", "drafter", *DRAFT_OPTIONS, "engine", "dtype", "device", "threads", "context", "quantize", "offline",
)  # fmt: skip


@click.command("generate")
@generate_options
def command(prompt: tuple[str, ...], as_json: bool, show_draft: bool, compare: bool, **values: Any) -> int:
    """Generate text from PROMPT (or from stdin with -), with speculative decoding.

    The text goes to stdout; what speculation gained goes to stderr."""
    load_options, refresh = {name: values.pop(name) for name in _LOAD_OPTIONS}, values.pop("refresh")
    if as_json and show_draft:
        raise OptionError("`--show-draft` marks the text and cannot be mixed with --json; drop one of the two")
    if values["logprobs"] is not None and not as_json:
        raise OptionError("`--logprobs` is reported in JSON only; add --json")
    values["logit_bias"] = _biases(values["logit_bias"])
    for name, text in [("--system", values["system"] or ""), *(("--stop", stop) for stop in values["stop"])]:
        if not _is_unicode(text):
            raise OptionError(f"`{name}` must be UTF-8, got {text!r:.60}; convert it first, e.g. with iconv")
    asked = Options.of(**values)  # a wrong option is refused before a model is loaded
    prompt_text = _prompt(prompt)

    from headstart.loading import load

    with Loading() as progress:
        llm = load(**load_options, progress=progress)
        if asked.resolved_gamma == "auto" and llm.drafter.name != "none":
            llm.round_costs(asked, refresh=refresh, progress=progress)
        stream = llm.stream(prompt_text, **values)
        shown = draft_view(sys.stdout, marked=show_draft, trees=asked.tree is not None)
        view = CountView(sys.stdout, progress, asked.max_tokens) if as_json else shown
        schedule = None if as_json else stream.output.schedule
        progress("reading the prompt", None)
        interrupted = not _decode(stream, view, progress, None if schedule is None else scheduled_start(schedule))
    view.end()
    comparison = None
    if compare and not interrupted:
        from headstart.comparison import compare as run_plain

        try:
            with Loading() as progress:
                comparison = run_plain(llm, stream.output, prompt_text, progress=progress)
        except KeyboardInterrupt:
            interrupted = True
    if as_json:
        write_json(stream.output.to_json() | (comparison.to_json() if comparison else {}))
    else:
        sys.stdout.flush()
        say(*([view.legend] if view.legend else []), *summary(stream.output, comparison))
        if comparison is not None and comparison.same_tokens is False:
            _explain(llm, prompt_text, asked, comparison)
    return 130 if interrupted else 0


def _decode(stream: Any, view: DraftView, progress: Loading, start: str | None) -> bool:
    """Show the stream to its end, with the line `start` before its first text; False where Ctrl-C was the end. All text of
    `stream.output` has then been shown."""
    try:
        for step in stream.steps():
            if start is not None:  # said only now: what fails before says one line, the error's
                progress.stop()
                say(start)
                start = None
            if not view.silent:
                progress.stop()  # text and a progress line cannot share the terminal
            view.show(step)
    except KeyboardInterrupt:
        progress.stop()
        stream.close()
        view.show([Piece(text=stream.output.text[view.shown :], token=None, kind="plain")])
        return False
    except HeadstartError:
        view.end()
        raise
    return True


def _prompt(words: Sequence[str]) -> str:
    """The prompt as text. Raises OptionError unless exactly one is given, InputError where it is not UTF-8."""
    if not words:
        raise OptionError("a PROMPT is missing; give it as an argument, or - to read it from stdin")
    if len(words) > 1:
        raise OptionError(
            f"PROMPT must be one argument, got {len(words)} ({words[0]!r:.40}, {words[1]!r:.40}, …); put it in quotes"
        )
    prompt = words[0]
    try:
        if prompt == "-":
            return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeError:
        prompt = "\udcff"
    if not _is_unicode(prompt):
        raise InputError("the prompt is not valid UTF-8; convert it first, e.g. with iconv")
    return prompt


def _is_unicode(text: str) -> bool:
    """Whether what the shell passed was UTF-8: Python keeps stray bytes as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeError:
        return False
    return True


def _biases(pairs: Sequence[tuple[int, float]]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for token, bias in pairs:
        if token in biases:
            raise OptionError(
                f"`logit_bias` must name a token once, got {token}={biases[token]:g} and {token}={bias:g}; drop one"
            )
        biases[token] = bias
    return biases


def _explain(llm: Any, prompt: str, asked: Options, comparison: Any) -> None:
    """Say how near a tie the first differing token was."""
    from headstart.comparison import first_difference

    found = first_difference(llm, llm.prompt_ids(prompt, asked), comparison)
    if found is not None:
        say(
            f"first difference at output token {found.position}: the two candidates' logits are {abs(found.gap_alone):.3g} apart "
            f"scored alone and {abs(found.gap_together):.3g} scored together; this engine's rounding depends on how many tokens "
            "share a pass (try --dtype float32)"
        )
