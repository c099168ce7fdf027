"""What `generate` looks like in a terminal: text that streams, drafts in colour, a summary, a sign of life while loading."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from itertools import groupby
from types import TracebackType
from typing import Any, Self, TextIO

from headstart.comparison import Comparison
from headstart.generation import Output, Piece
from headstart.schedule import ScheduleReport

__all__ = ["CountView", "DraftView", "Loading", "draft_view", "scheduled_start", "summary"]


class DraftView:
    """Text as it comes, without marks."""

    legend = ""  # what the marks mean, in one line
    silent = False  # whether the terminal is left to the progress line

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._at_line_start = True
        self.shown = 0  # characters of the text written so far, marks not counted

    def show(self, step: Sequence[Piece]) -> None:
        """Write the pieces of one round."""
        segments = [(kind, "".join(piece.text for piece in pieces)) for kind, pieces in groupby(step, lambda piece: piece.kind)]
        marked = "".join(self._marked(kind, text) for kind, text in segments if text)
        if marked:
            self._out.write(marked)
            self._out.flush()
            self.shown += sum(len(text) for _, text in segments)
            self._at_line_start = marked.removesuffix(_PLAIN).endswith("\n")

    def end(self) -> None:
        """Leave the cursor on a fresh line."""
        if not self._at_line_start:
            self._out.write("\n")
            self._at_line_start = True

    def _marked(self, kind: str, text: str) -> str:
        return text


class CountView(DraftView):
    """No text: how many tokens are out, on the progress line."""

    silent = True

    def __init__(self, out: TextIO, progress: Callable[[str, float | None], None], most: int) -> None:
        super().__init__(out)
        self._progress, self._most, self._count = progress, most, 0

    def show(self, step: Sequence[Piece]) -> None:
        self._count += sum(piece.token is not None for piece in step)
        self._progress(f"generating ({self._count} of at most {self._most} tokens)", min(1.0, self._count / self._most))


_PLAIN = "\x1b[0m"


class _ColourView(DraftView):
    """Accepted tokens green, those from a side branch cyan, corrections red, bonus tokens blue; the others as they are."""

    _COLOURS = {  # noqa: RUF012
        "accepted": "\x1b[32m",
        "branch": "\x1b[36m",
        "correction": "\x1b[31;1m",
        "bonus": "\x1b[34;1m",
    }

    def __init__(self, out: TextIO, trees: bool) -> None:
        super().__init__(out)
        names = {"accepted": "green", "branch": "cyan", "correction": "red", "bonus": "blue"}
        if not trees:
            del names["branch"]
        if _colours(sys.stderr):
            self.legend = "   " + " · ".join(self._marked(kind, kind) for kind in names) + " · no draft"
        else:
            self.legend = "   " + ", ".join(f"{colour}: {kind}" for kind, colour in names.items()) + ", plain: no draft"

    def _marked(self, kind: str, text: str) -> str:
        colour = self._COLOURS.get(kind)
        return f"{colour}{text}{_PLAIN}" if colour else text


class _BracketView(DraftView):
    """For terminals and files without colour: [accepted], (branch), {correction}, <bonus>."""

    _MARKS = {"accepted": "[]", "branch": "()", "correction": "{}", "bonus": "<>", "plain": ("", "")}  # noqa: RUF012

    def __init__(self, out: TextIO, trees: bool) -> None:
        super().__init__(out)
        branch = "(accepted from a side branch) · " if trees else ""
        self.legend = f"   [accepted] · {branch}{{correction}} · <bonus> · no draft"

    def _marked(self, kind: str, text: str) -> str:
        before, after = self._MARKS[kind]
        return f"{before}{text}{after}"


def draft_view(out: TextIO, *, marked: bool, trees: bool = False) -> DraftView:
    """A view that, if `marked`, shows where tokens came from: colours on a terminal, brackets elsewhere or under NO_COLOR.

    `trees`: tokens may be accepted from another branch than the one a chain would have drafted."""
    if not marked:
        return DraftView(out)
    return _ColourView(out, trees) if _colours(out) else _BracketView(out, trees)


def _colours(out: TextIO) -> bool:
    """Whether colour is wanted: on a terminal that has it, or under FORCE_COLOR; never under NO_COLOR."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (out.isatty() and os.environ.get("TERM") != "dumb")


def summary(output: Output, comparison: Comparison | None = None) -> list[str]:
    """A few lines that say what speculation did."""
    stats, settings = output.stats, output.settings
    speed = f"{stats.tokens_per_second:.1f} tokens/s" if stats.tokens_per_second else "too short to time"
    tree = settings.options.tree
    size = f"gamma {settings.options.resolved_gamma}" if tree is None else f"tree {tree}"
    how = f"{settings.drafter}, {size}, {settings.options.resolved_rule} rule"
    if settings.drafter == "none":
        how = "plain decoding"
    interrupted = "interrupted after " if output.finish_reason is None else ""
    tokens, calls = _count(stats.completion_tokens, "token"), _count(stats.num_rounds, "target call")
    quantize = settings.loaded.get("quantize")
    how += f", target quantised to {quantize}" if quantize else ""
    lines = [f"── {interrupted}{tokens} in {calls} · {speed} · {how}"]
    if stats.num_drafted:
        lines.append(
            f"   {stats.block_efficiency:.2f} tokens per call; "
            f"{stats.num_accepted} of {_count(stats.num_drafted, 'drafted token')} accepted"
        )
        if stats.acceptance_rate is not None:
            judged = stats.num_accepted + stats.num_rejections
            lines[-1] += f" (acceptance rate {stats.acceptance_rate:.2f} of {judged} judged)"
    elif settings.drafter != "none" and stats.num_rounds:
        lines.append("   1.00 tokens per call; nothing was drafted")
    if output.schedule is not None:
        lines.append(f"   {_scheduled(output)}")
    if not output.lossless:
        lines.append(f"   lossy: the rule {settings.options.resolved_rule} does not keep the target's law")
    if output.seed is not None:
        lines.append(f"   seed {output.seed}")
    if comparison is not None:
        plain, speedup = comparison.plain.stats.tokens_per_second, comparison.speedup
        gain = f"{speedup:.2f}× plain decoding's {plain:.1f} tokens/s" if speedup and plain else "too short to compare"
        lines.append(f"   {gain}; {_same(comparison)}")
    return lines


def scheduled_start(report: ScheduleReport) -> str:
    """One line before the first token, with gamma auto: whether speculation begins, and why."""
    return f"speculation {'on' if report.active else 'off'}: {report.why}"


def _scheduled(output: Output) -> str:
    """One line after the last token, with gamma auto: how it ended, why, and what it gained."""
    report = output.schedule
    assert report is not None
    rounds = report.rounds_drafted + report.rounds_plain
    line = f"speculation {'on' if report.active else 'off'} at the end, drafted in {report.rounds_drafted} of {rounds} rounds"
    if output.estimated_speedup:
        line += f", {output.estimated_speedup:.2f}× the {1 / report.plain_seconds:.1f} tokens/s of plain rounds here"
    return f"{line}; {report.why}"


_SAME = {
    True: "the same tokens",
    False: "not the same tokens",
    None: "sampled, so the tokens differ by chance, not in law (--rule coupled with a --seed makes them the same)",
}


def _same(comparison: Comparison) -> str:
    if comparison.same_tokens is None and not comparison.speculative.lossless:
        return "plain decoding is sampled from the target's law, this text is not"
    return _SAME[comparison.same_tokens]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class Loading:
    """A progress line on stderr while something slow goes on; silent where stderr is not a terminal."""

    def __init__(self) -> None:
        self._progress: Any = None
        self._task: Any = None
        self._stage: str | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
            console = Console(stderr=True)
            # stdout stays as it is: it may be a file, and text for it is nobody else's.
            self._progress = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
            self._progress.start()
        return self

    def __call__(self, stage: str, fraction: float | None) -> None:
        """Say what is going on and, where known, how far it is (0 to 1)."""
        if self._progress is None:
            return
        total = None if fraction is None else 1.0
        if self._task is None:
            self._task = self._progress.add_task(stage, total=total)
        new, self._stage = stage != self._stage, stage
        self._progress.update(self._task, description=stage, total=total, completed=fraction or 0.0, refresh=new)

    def stop(self) -> None:
        """Take the line away, for good."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
