"""`headstart generate`: text from a prompt, streamed, with what speculation gained."""

from __future__ import annotations

import sys
from typing import Any

import click

from headstart.cli.generate_options import generate_options
from headstart.cli.options import write_json
from headstart.cli.view import DraftView, Loading, draft_view, summary
from headstart.errors import InputError, OptionError
from headstart.records import Options

__all__ = ["command"]


@click.command("generate")
@generate_options
def command(prompt: str | None, as_json: bool, show_draft: bool, compare: bool, **values: Any) -> int:
    """Generate text from PROMPT (or from stdin with -), with speculative decoding.

    The text goes to stdout; what speculation gained goes to stderr."""
    load_names = ("target", "drafter", "engine", "dtype", "device", "threads", "context", "offline")
    load_options = {name: values.pop(name) for name in load_names}
    if as_json and show_draft:
        raise OptionError("`--show-draft` colours the text and cannot be mixed with --json; drop one of the two")
    if values["logprobs"] is not None and not as_json:
        raise OptionError("`--logprobs` is reported in JSON only; add --json")
    values["logit_bias"] = dict(values["logit_bias"])
    asked = Options.of(**values)  # a wrong option is refused before a model is loaded
    text = _prompt(prompt)

    from headstart.loading import load

    with Loading() as progress:
        llm = load(**load_options, progress=progress)
    stream = llm.stream(text, **values)
    view = DraftView(sys.stdout) if not show_draft else draft_view(sys.stdout)
    try:
        for step in stream.steps():
            if not as_json:
                view.show(step)
    except KeyboardInterrupt:
        stream.close()
        _finish(stream.output, as_json, view)
        return 130
    comparison = None
    if compare:
        from headstart.comparison import compare as run_plain

        with Loading() as progress:
            progress("plain decoding, to compare", None)
            comparison = run_plain(llm, stream.output, text)
    _finish(stream.output, as_json, view, comparison)
    if comparison is not None and comparison.same_tokens is False and not as_json:
        _explain(llm, text, asked, comparison)
    return 0


def _prompt(prompt: str | None) -> str:
    """The prompt as text. Raises OptionError where none is given, InputError where it is not UTF-8."""
    if prompt is None:
        raise OptionError("a PROMPT is missing; give it as an argument, or - to read it from stdin")
    try:
        if prompt == "-":
            return sys.stdin.buffer.read().decode("utf-8")
        prompt.encode("utf-8")  # what the shell passed may hold stray bytes
    except UnicodeError:
        raise InputError("the prompt is not valid UTF-8; convert it first, e.g. with iconv") from None
    return prompt


def _finish(output: Any, as_json: bool, view: DraftView, comparison: Any = None) -> None:
    if as_json:
        write_json(output.to_json() | (comparison.to_json() if comparison else {}))
        return
    view.end()
    sys.stdout.flush()
    for line in summary(output, comparison):
        print(line, file=sys.stderr)


def _explain(llm: Any, prompt: str, asked: Options, comparison: Any) -> None:
    """Say how near a tie the first differing token was."""
    from headstart.comparison import first_difference

    found = first_difference(llm, llm.prompt_ids(prompt, asked), comparison)
    if found is not None:
        print(
            f"first difference at output token {found.position}: the two candidates' logits are {abs(found.gap_alone):.3g} apart "
            f"scored alone and {abs(found.gap_together):.3g} scored together; this engine's rounding depends on how many tokens "
            "share a pass (try --dtype float32)",
            file=sys.stderr,
        )
