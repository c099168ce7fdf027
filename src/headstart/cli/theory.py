"""`headstart theory`: the closed forms of the article *Speculative Decoding From Scratch*, beside their simulations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headstart import theory
from headstart.cli.options import JSON, listed, write_json
from headstart.errors import OptionError
from headstart.theory.arrays import Advance, check_whole

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["command"]

_LONGEST = 10_000  # draft and sequence lengths beyond this are typing errors, and would only fill memory
_ROWS_SHOWN = 20


def _plot_file(ctx: click.Context, param: click.Parameter, value: str | None) -> Path | None:
    if value is None:
        return None
    from headstart.plots import check_plot

    return check_plot(value)


def _score_cost(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> theory.ScoreCost:
    """`1:1,2:1.1,4:1.2` or `1,1.1,1.2`: measured points, or v(1), v(2), … in order."""
    pieces = [piece.strip() for value in values for piece in value.split(",")]
    if not pieces:
        return theory.ScoreCost()
    if len({":" in piece for piece in pieces}) == 2:
        raise OptionError(f"`score-cost` must be all k:v or all v, got {','.join(pieces)!r}; write for example 1:1,2:1.1,4:1.2")
    try:
        pairs = [piece.split(":") if ":" in piece else (place, piece) for place, piece in enumerate(pieces, 1)]
        points = [(int(k), float(v)) for k, v in pairs]
    except ValueError:
        raise OptionError(f"`score-cost` must be numbers, got {','.join(pieces)!r}; write for example 1:1,2:1.1,4:1.2") from None
    return theory.ScoreCost(tokens=tuple(k for k, _ in points), costs=tuple(v for _, v in points))


def _seed_and_outputs(function: Callable[..., None]) -> Callable[..., None]:
    seed = click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same numbers.")
    return seed(_outputs(function))


def _outputs(function: Callable[..., None]) -> Callable[..., None]:
    plot = click.option("--plot", metavar="FILE", callback=_plot_file, help="Draw a chart: .png, .svg or .pdf.")
    return plot(JSON(function))


def _many(flag: str, convert: Callable[[str], Any], kind: str, default: str, help: str) -> Callable[[Any], Any]:
    return click.option(
        flag, multiple=True, default=(default,), callback=listed(convert, kind), metavar="X[,X…]", show_default=True, help=help
    )


class _InOrder(click.Group):
    """A group that lists its commands as they are written here: the order of the article."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """The closed forms of speculative decoding, and their simulations.

    Lists are comma-separated, or the option is repeated."""


@command.command(short_help="One position: accept the guess or resample.")
@_many("--target", float, "a number", ",".join(f"{p:g}" for p in theory.ARTICLE_TARGET), "The target's row p.")
@_many("--draft", float, "a number", ",".join(f"{q:g}" for q in theory.ARTICLE_DRAFT), "The draft's row q, of the same length.")
@click.option("--draws", type=int, default=2_000_000, show_default=True, help="How often to accept or resample.")
@_seed_and_outputs
def step(target: tuple[float, ...], draft: tuple[float, ...], draws: int, seed: int, plot: Path | None, as_json: bool) -> None:
    """One position: accept the guess or resample; the output follows the target."""
    with _progress("drawing", draws) as advance:
        result = theory.simulate_step(target, draft, draws=draws, seed=seed, advance=advance)
    if plot:
        from headstart.plots import plot_step

        plot_step(result, plot)
    if as_json:
        return _finish(asdict(result), plot)
    table = _table("token", "target p", "draft q", "output", "output − p")
    rows = list(zip(result.target, result.draft, result.empirical, strict=True))
    for token, (p, q, share) in enumerate(rows[:_ROWS_SHOWN]):
        table.add_row(str(token), f"{p:.4f}", f"{q:.4f}", f"{share:.4f}", f"{round(share - p, 5) + 0.0:+.5f}")
    more = [f"… and {len(rows) - _ROWS_SHOWN} more tokens (--json has all of them)"] if len(rows) > _ROWS_SHOWN else []
    _show(
        f"One position: accept or resample ({draws:,} draws, seed {seed})",
        table,
        *more,
        f"accepted    {result.acceptance_rate:.4f}    overlap Σ min(p, q) = 1 − TV = {result.overlap:.4f}",
        f"max error   {result.max_error:.5f}   standard error {result.standard_error:.5f}",
        "",
        "The output follows the target whatever the draft; the draft only decides how often a guess is kept.",
    )
    _finish(None, plot)


@command.command("yield", short_help="Tokens per round, formula and simulation.")
@_many("--alpha", float, "a number", "0.5,0.7,0.9", "Acceptance rates, 0 to 1.")
@_many("--gamma", int, "a whole number", "1,4,8", "Draft lengths.")
@click.option("--trials", type=int, default=300_000, show_default=True, help="Rounds to play for each pair.")
@_seed_and_outputs
def yield_(alpha: tuple[float, ...], gamma: tuple[int, ...], trials: int, seed: int, plot: Path | None, as_json: bool) -> None:
    """Tokens per round: (1 − α^(γ+1)) / (1 − α)."""
    for length in gamma:
        _check_gamma(length)
    pairs = [(rate, length) for rate in alpha for length in gamma]
    with _progress("playing rounds", trials * len(pairs)) as advance:
        points = [theory.simulate_yield(rate, length, trials=trials, seed=seed, advance=advance) for rate, length in pairs]
    if plot:
        from headstart.plots import plot_yield

        plot_yield(points, plot)
    if as_json:
        return _finish([asdict(point) for point in points], plot)
    table = _table("α", "γ", "formula", "simulated", "std. error", "ceiling")
    for point in points:
        table.add_row(
            f"{point.alpha:g}",
            str(point.gamma),
            f"{point.formula:.4f}",
            f"{point.simulated:.4f}",
            f"{point.standard_error:.4f}",
            _ceiling(theory.ceiling(point.alpha)),
            end_section=point.gamma == gamma[-1] and len(gamma) > 1,
        )
    _show(
        f"Tokens per round ({trials:,} rounds each, seed {seed})",
        table,
        "Each further guess adds less: no draft gets past 1/(1 − α) tokens a round.",
    )
    _finish(None, plot)


@command.command(short_help="Is it worth it, and how long to draft.")
@_many("--alpha", float, "a number", "0.5,0.6,0.7,0.8,0.9", "Acceptance rates, 0 to 1.")
@click.option("--cost-ratio", type=float, default=0.1, show_default=True, help="c = t_draft / t_target, each for one token.")
@click.option(
    "--score-cost",
    multiple=True,
    callback=_score_cost,
    metavar="K:V[,K:V…]",
    help="v(k) = t_target(k) / t_target(1), the cost of scoring k tokens at once, as measured points from k = 1, for example "
    "1:1,2:1.1,4:1.2,8:1.4, or as v(1),v(2),… in order. Any unit: all are divided by v(1). Linear in between; the last slope "
    "goes on.  [default: scoring costs the same for every k]",
)
@click.option("--gamma", type=int, default=20, show_default=True, help="The longest draft to try.")
@_outputs
def walltime(
    alpha: tuple[float, ...], cost_ratio: float, score_cost: theory.ScoreCost, gamma: int, plot: Path | None, as_json: bool
) -> None:
    """Is it worth it, and the best draft length: E / (γc + v(γ+1))."""
    _check_gamma(gamma)
    points = [theory.walltime_point(rate, cost_ratio, gamma, score_cost) for rate in alpha]
    flat = set(score_cost.costs) == {1.0}
    if plot:
        from headstart.plots import plot_walltime

        plot_walltime(points, cost_ratio, plot, flat=flat)
    if as_json:
        return _finish([asdict(point) for point in points], plot)
    table = _table("α", "best γ", "predicted", "ceiling", f"at γ = {gamma}", "worth it")
    for point in points:
        pays = point.break_even_alpha is not None and point.alpha > point.break_even_alpha
        table.add_row(
            f"{point.alpha:g}",
            str(point.best_gamma),
            f"{point.walltime_improvement:.2f}×",
            _ceiling(point.ceiling, "×"),
            f"{point.curve[-1][1]:.2f}×",
            "[green]yes[/green]" if pays else "[red]no[/red]",
        )
    title = f"Speed against plain decoding (c = {cost_ratio:g}, {'v = 1' if flat else 'v as given'}, γ from 1 to {gamma})"
    _show(title, table, *_walltime_lessons(points, gamma))
    _finish(None, plot)


@command.command(short_help="Whole sequences, with and without speculation.")
@click.option("--gamma", type=int, default=4, show_default=True, help="Draft length.")
@click.option("--length", type=int, default=64, show_default=True, help="Tokens of a sequence.")
@click.option("--trials", type=int, default=60_000, show_default=True, help="Sequences to play, with and without speculation.")
@_seed_and_outputs
def sequence(gamma: int, length: int, trials: int, seed: int, plot: Path | None, as_json: bool) -> None:
    """A whole sequence from last-token tables: the same text in fewer target calls."""
    _check_gamma(gamma)
    check_whole("length", length, 1, "; it is the number of tokens", most=_LONGEST)
    with _progress("playing sequences", trials) as advance:
        result = theory.simulate_sequences(gamma=gamma, length=length, trials=trials, seed=seed, advance=advance)
    if plot:
        from headstart.plots import plot_sequence

        plot_sequence(result, plot)
    if as_json:
        document = asdict(result)
        for name in ("block_efficiency_error", "gamma", "length", "trials", "seed"):
            del document[name]
        return _finish(document, plot)
    title = f"Share of each token ({trials:,} sequences of {length}, γ = {gamma}, seed {seed})"
    shares = _table("token", "target alone", "speculative", "exact", "std. error")
    columns = (result.target_only, result.speculative, result.exact)
    for token, error in enumerate(result.standard_error):
        shares.add_row(str(token), *(f"{column[token]:.4f}" for column in columns), f"{error:.5f}")
    calls = _table("simulated", f"exact, L = {length}", "exact, long run", "i.i.d. formula")
    calls.add_row(
        f"{result.block_efficiency:.4f} ± {result.block_efficiency_error:.4f}",
        f"{result.block_efficiency_exact:.4f}",
        f"{result.block_efficiency_long_run:.4f}",
        f"{result.block_efficiency_iid:.4f}",
    )
    cut = result.block_efficiency_long_run - result.block_efficiency_exact
    uneven = result.block_efficiency_long_run - result.block_efficiency_iid
    _show(title, shares, f"max difference {result.max_difference:.5f}; standard errors are by sequence")
    _show(
        "Tokens per target call",
        calls,
        f"{result.target_calls_saved:.0%} of target calls saved",
        "",
        f"Cutting the last round at L = {length} takes {cut:.4f} off the long run. Contexts that differ and follow one another "
        f"move the long run by {round(uneven, 4) + 0.0:+.4f} against the formula at the mean α = {result.alpha_stationary:.4f}.",
    )
    _finish(None, plot)


def _walltime_lessons(points: list[theory.WalltimePoint], longest: int) -> list[str]:
    even = points[0].break_even_alpha
    if even is None:
        return ["At these costs no draft length pays, whatever α: use plain decoding."]
    lessons = [f"Up to α = {even:.4g} no draft length pays: use plain decoding." if even > 0 else "Any α over 0 pays."]
    if any(point.best_gamma == longest > 1 for point in points):
        lessons.append(f"An optimum at γ = {longest} is the longest draft tried; a larger --gamma may find a better one.")
    if any(point.best_gamma < longest for point in points):
        lessons.append("Past the best γ, a longer draft gives speed back; guessing too long is the commoner mistake.")
    return lessons


def _check_gamma(gamma: int) -> None:
    check_whole("gamma", gamma, 1, "; it is the number of tokens drafted in a round", most=_LONGEST)


def _ceiling(value: float | None, unit: str = "") -> str:
    return "none" if value is None else f"{value:.1f}{unit}"


@contextmanager
def _progress(label: str, total: int) -> Iterator[Advance | None]:
    """A bar on stderr while work goes on, gone afterwards; nothing at all where stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.advance(task, done)


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    return table


def _show(title: str, table: Table, *lines: str) -> None:
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    console.print(title, style="bold", markup=False)
    console.print()
    console.print(table)
    console.print()
    for line in lines:
        console.print(line, markup=False)
    console.print()


def _finish(document: Any, plot: Path | None) -> None:
    if document is not None:
        write_json(document)
    if plot:
        click.echo(f"wrote {plot}", err=True)
