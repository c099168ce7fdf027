"""`headstart bench`: measurements of a model on this machine."""

from __future__ import annotations

import os
from typing import Any

import click

from headstart.cli.machine import versions
from headstart.cli.options import JSON, listed, write_json
from headstart.cli.view import Loading

__all__ = ["command"]


@click.group("bench")
def command() -> None:
    """Measure what a model costs on this machine."""


@command.command("costs")
@click.option("--target", default="smollm2", show_default=True, metavar="REF", help="The model to time.")
@click.option("--k", multiple=True, default=("1,2,4,8,16,32",), show_default=True, callback=listed(int, "a whole number"),
              metavar="K", help="Tokens scored in one pass; a list, or repeated.")  # fmt: skip
@click.option("--context", type=click.IntRange(min=1), default=256, show_default=True, help="Tokens in the cache before.")
@click.option("--repeats", type=click.IntRange(min=3), default=9, show_default=True, help="Rounds timed.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.")
@click.option("--engine", default="auto", show_default=True, help="auto, native or transformers.")
@click.option("--dtype", default="auto", show_default=True, help="auto, float32 or bfloat16 (transformers only).")
@click.option("--offline", is_flag=True, help="Never fetch anything.")
@JSON
def costs(target: str, k: tuple[int, ...], context: int, repeats: int, as_json: bool, **options: Any) -> None:
    """Milliseconds of a pass that scores K tokens, and how that compares with scoring one."""
    from headstart.costs import measure_bandwidth, measure_passes
    from headstart.loading import load

    with Loading() as progress:
        llm = load(target, drafter="none", progress=progress, **options)
        measured = measure_passes(llm.model, k, context=context, repeats=repeats, progress=progress)
        threads = int(llm.loaded.get("threads") or os.cpu_count() or 1)
        bandwidth = measure_bandwidth(threads)
    bytes_read = getattr(llm.model, "bytes_per_pass", None)
    first = measured.milliseconds[1]
    document = {
        "target": target,
        "engine": llm.engine,
        "instruction_set": llm.loaded.get("instruction_set"),
        "threads": threads,
        "context": context,
        "n": repeats,
        "milliseconds": {str(n): round(t, 4) for n, t in measured.milliseconds.items()},
        "spread": {str(n): round(t, 4) for n, t in measured.spread.items()},
        "ratio": {str(n): round(measured.ratio(n), 4) for n in measured.milliseconds},
        "bytes_read": bytes_read,
        "gigabytes_per_second": round(bytes_read / first / 1e6, 3) if bytes_read else None,
        "measured_bandwidth": round(bandwidth, 3),
        "versions": versions(),
        "hardware": {"processor": _processor(), "cores": os.cpu_count()},
    }
    if as_json:
        write_json(document)
    else:
        _show(document)


def _processor() -> str:
    from headstart.cli.doctor import processor_name

    return processor_name()


def _show(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{document['target']}: one pass after {document['context']} tokens ({document['engine']})", title_justify="left"
    )
    for heading in ("tokens", "milliseconds", "± IQR", "ratio to 1"):
        table.add_column(heading, justify="right")
    for n, milliseconds in document["milliseconds"].items():
        table.add_row(n, f"{milliseconds:.2f}", f"{document['spread'][n]:.2f}", f"{document['ratio'][n]:.2f}×")
    console = Console()
    console.print(table)
    reading = f"{document['gigabytes_per_second']:.1f} GB/s of " if document["gigabytes_per_second"] else ""
    console.print(f"{reading}{document['measured_bandwidth']:.1f} GB/s this memory gives {document['threads']} threads")
