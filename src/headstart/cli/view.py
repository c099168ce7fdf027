"""What `generate` looks like in a terminal: text that streams, drafts in colour, a summary, a sign of life while loading."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TextIO

from headstart.comparison import Comparison
from headstart.generation import Output, Piece

__all__ = ["DraftView", "Loading", "draft_view", "summary"]


class DraftView:
    """Text as it comes, without marks."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._at_line_start = True

    def show(self, step: Sequence[Piece]) -> None:
        """Write the pieces of one round."""
        self._write("".join(piece.text for piece in step))

    def end(self) -> None:
        """Leave the cursor on a fresh line."""
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()
            self._at_line_start = text.endswith("\n")


class _ColourView(DraftView):
    """Accepted tokens green, corrections red, bonus tokens blue; tokens of rounds without a draft as they are."""

    _CODES = {"accepted": "32", "correction": "31;1", "bonus": "34;1", "plain": ""}  # noqa: RUF012

    def show(self, step: Sequence[Piece]) -> None:
        for piece in step:
            code = self._CODES[piece.kind]
            self._write(f"\x1b[{code}m{piece.text}\x1b[0m" if code and piece.text else piece.text)

    def end(self) -> None:
        self._write("\n")
        legend = "  ".join(f"\x1b[{code}m{kind}\x1b[0m" for kind, code in self._CODES.items() if code)
        self._write(f"({legend}  no draft)\n")


class _BracketView(DraftView):
    """For terminals and files without colour: [accepted], {correction}, <bonus>."""

    _MARKS = {"accepted": "[]", "correction": "{}", "bonus": "<>"}  # noqa: RUF012

    def show(self, step: Sequence[Piece]) -> None:
        last = "plain"
        for piece in step:
            if piece.kind != last and last in self._MARKS:
                self._write(self._MARKS[last][1])
            if piece.kind != last and piece.kind in self._MARKS:
                self._write(self._MARKS[piece.kind][0])
            self._write(piece.text)
            last = piece.kind
        if last in self._MARKS:
            self._write(self._MARKS[last][1])

    def end(self) -> None:
        self._write("\n([accepted]  {correction}  <bonus>  no draft)\n")


def draft_view(out: TextIO) -> DraftView:
    """A view that marks where tokens came from: colours on a terminal, brackets elsewhere or under NO_COLOR."""
    colours = (out.isatty() or bool(os.environ.get("FORCE_COLOR"))) and not os.environ.get("NO_COLOR")
    return _ColourView(out) if colours else _BracketView(out)


def summary(output: Output, comparison: Comparison | None = None) -> list[str]:
    """A few lines that say what speculation did."""
    stats, settings = output.stats, output.settings
    speed = f"{stats.tokens_per_second:.1f} tokens/s" if stats.tokens_per_second else "too short to time"
    how = f"{settings.drafter}, gamma {settings.options.resolved_gamma}, {settings.options.resolved_rule} rule"
    if settings.drafter == "none":
        how = "plain decoding"
    lines = [f"── {stats.completion_tokens} tokens in {stats.num_rounds} target calls · {speed} · {how}"]
    if stats.num_drafted:
        lines.append(
            f"   {stats.block_efficiency:.2f} tokens per call; {stats.num_accepted} of {stats.num_drafted} drafted tokens "
            f"accepted (acceptance rate {stats.acceptance_rate:.2f})"
        )
    if output.seed is not None:
        lines.append(f"   seed {output.seed}")
    if comparison is not None:
        plain, speedup = comparison.plain.stats.tokens_per_second, comparison.speedup
        same = {True: "the same tokens", False: "other tokens", None: "sampled, so other tokens from the same law"}
        gain = f"{speedup:.2f}× plain's {plain:.1f} tokens/s" if speedup and plain else "too short to compare"
        lines.append(f"   {gain}; plain decoding emitted {same[comparison.same_tokens]}")
    return lines


class Loading:
    """A progress line on stderr while something slow goes on; silent where stderr is not a terminal."""

    def __init__(self) -> None:
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.start()
        return self

    def __call__(self, stage: str, fraction: float | None) -> None:
        """Say what is going on and, where known, how far it is (0 to 1)."""
        if self._progress is None:
            return
        total = None if fraction is None else 1.0
        if self._task is None:
            self._task = self._progress.add_task(stage, total=total)
        self._progress.update(self._task, description=stage, total=total, completed=fraction or 0.0)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()
