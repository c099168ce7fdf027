"""`headstart bench`: measurements of a model on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from headstart.cli.machine import machine, versions
from headstart.cli.options import DRAFT_OPTIONS, JSON, draft_options, listed, say, write_json
from headstart.cli.plan import check_report, chosen_prompts, write_report
from headstart.cli.view import Loading
from headstart.generation import LLM
from headstart.prompts import CATEGORIES
from headstart.records import Options, Sampling
from headstart.verify import RULES

__all__ = ["command"]

_PEER_GAMMA = 4  # tokens a round that other engines draft where only auto was asked for
_PAUSE = 0.05  # seconds between answers where other engines take part: their idle threads go on looking for work for a while


@click.group("bench")
def command() -> None:
    """Measure what a model costs on this machine, and how fast it generates."""


@command.command("costs")
@click.option("--target", default="smollm2", show_default=True, metavar="REF", help="The model to time.")
@click.option("--k", multiple=True, default=("1,2,4,8,16,32",), show_default=True, callback=listed(int, "a whole number"),
              metavar="K", help="Tokens scored in one pass; a list, or repeated.")  # fmt: skip
@click.option("--context", type=click.IntRange(min=1), default=256, show_default=True, help="Tokens in the cache before.")
@click.option("--repeats", type=click.IntRange(min=3), default=9, show_default=True, help="Rounds timed.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.")
@click.option("--engine", default="auto", show_default=True, help="auto, native or transformers.")
@click.option("--dtype", default="auto", show_default=True, help="auto, float32 or bfloat16 (transformers only).")
@click.option("--quantize", metavar="q8_0|q4_0", help="Make a folder's matrices 8- or 4-bit at load (native only).")
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
        "quantize": llm.loaded.get("quantize"),
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


def _gamma(text: str) -> int | str:
    return "auto" if text == "auto" else int(text)


@command.command("speed")
@click.option("--target", default="smollm2", show_default=True, metavar="REF", help="The model to time.")
@click.option(
    "--drafter",
    multiple=True,
    default=("ngram",),
    show_default=True,
    metavar="D",
    help="A drafter to time, as in generate; may be repeated.",
)
@draft_options
@click.option(
    "--gamma",
    multiple=True,
    default=("4,auto",),
    show_default=True,
    callback=listed(_gamma, "a whole number or auto"),
    metavar="N|auto",
    help="Draft lengths to time each drafter with; a list, or repeated.",
)
@click.option(
    "--rule",
    type=click.Choice(list(RULES)),
    help="Default: block when greedy, coupled with a temperature, so that every way says the same.",
)
@click.option("--category", multiple=True, type=click.Choice(CATEGORIES), help="Only these prompts.")
@click.option("--prompts", metavar="FILE", help="Your own prompts instead of the built-in ones.")
@click.option("--each", type=click.IntRange(min=1), default=8, show_default=True, help="Built-in prompts of a category.")
@click.option("--max-tokens", type=click.IntRange(min=2), default=256, show_default=True, help="Tokens after each prompt.")
@click.option(
    "--temperature",
    multiple=True,
    default=("0,1",),
    show_default=True,
    callback=listed(float, "a number"),
    metavar="T",
    help="Temperatures; a list, or repeated. 0 is greedy.",
)
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Times each prompt is answered.")
@click.option(
    "--against",
    multiple=True,
    callback=listed(str, "an engine"),
    metavar="ENGINE",
    help="Other engines to time where they are installed: llama.cpp, transformers, openvino; a list, or repeated. "
    "Each decodes plainly, and with its own speculation at the fixed lengths of --gamma.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Where chance starts.")
@click.option("--report", metavar="FILE", help="Write the results as one HTML page.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.")
@click.option("--context", type=click.IntRange(min=8), help="Tokens a sequence may hold.")
@click.option("--engine", default="auto", show_default=True, help="auto, native or transformers.")
@click.option("--dtype", default="auto", show_default=True, help="auto, float32 or bfloat16 (transformers only).")
@click.option("--offline", is_flag=True, help="Never fetch anything.")
@JSON
def speed(as_json: bool, report: str | None, **values: Any) -> None:
    """Tokens per second of plain decoding, of drafters and of other engines, taking turns on the same prompts."""
    from headstart.bench.peers import check_peers
    from headstart.bench.speed import measure_speed

    check_peers(values["against"])
    prompts = chosen_prompts(values["prompts"], values["category"], values["each"])
    temperatures = [Sampling(temperature=t).temperature for t in dict.fromkeys(values["temperature"])]
    for gamma in values["gamma"]:
        Options(gamma=gamma)  # a wrong length is refused before a model is read
    check_report(report)
    with Loading() as progress:
        ways, llm, source = _ways(values, temperatures, progress)
        peers, left_out = _peers(values, llm, source, progress)
        results = measure_speed(
            [*ways, *(way for peer in peers for way in peer.ways)],
            prompts,
            temperatures=temperatures,
            max_tokens=values["max_tokens"],
            repeats=values["repeats"],
            seed=values["seed"],
            gap=ways[0].gap if peers else None,
            pause=_PAUSE if peers else 0.0,
            progress=progress,
        )
    missing = [*left_out.values(), *(line for peer in peers for line in peer.lacks)]
    for line in missing:
        say(line)
    about = machine(llm) | {name: values[name] for name in ("max_tokens", "repeats", "seed")}
    about |= {"peers": {peer.name: peer.about for peer in peers}}
    if report is not None:
        from headstart.bench.report import speed_report

        write_report(report, speed_report(llm.target, results, about, missing))
    if as_json:
        names = list(dict.fromkeys(result.way for result in results))
        document = {"bench": "speed", "target": llm.target, "machine": about, "ways": names, "left_out": missing}
        write_json(document | {"results": [result.to_json() for result in results]})
    else:
        _show_speed(llm.target, results)


def _ways(values: dict[str, Any], temperatures: Sequence[float], progress: Loading) -> tuple[list[Any], LLM, Path]:
    """Plain decoding first, then every drafter with every length; costs that auto needs are measured now. The target, too."""
    from headstart.bench.ways import OwnWay
    from headstart.loading import load_many

    load_options = {name: values[name] for name in (*DRAFT_OPTIONS, "engine", "dtype", "threads", "context", "offline")}
    drafters = [name for name in dict.fromkeys(values["drafter"]) if name != "none"]
    loaded = load_many(values["target"], ["none", *drafters], **load_options, progress=progress)
    plain, rule = loaded[0].llm, values["rule"]
    ways: list[Any] = [OwnWay(plain, rule=rule)]
    for each in loaded[1:]:
        for gamma in dict.fromkeys(values["gamma"]):
            ways.append(OwnWay(each.llm, gamma=gamma, rule=rule))
            if gamma == "auto":
                for temperature in temperatures:
                    seed = values["seed"] if temperature > 0 and rule in (None, "coupled") else None
                    asked = Options.of(temperature=temperature, rule=rule, gamma=gamma, seed=seed)
                    each.llm.round_costs(asked, progress=progress)
    return ways, plain, loaded[0].source


def _peers(values: dict[str, Any], llm: LLM, source: Path, progress: Loading) -> tuple[list[Any], dict[str, str]]:
    """Other engines asked for, drafting as ours do where they can; why those left out are."""
    if not values["against"]:
        return [], {}
    from headstart.bench.peers import Setup, open_peers
    from headstart.references import find

    models = [name for name in dict.fromkeys(values["drafter"]) if name.startswith("model:") and "+" not in name]
    setup = Setup(
        source=source,
        llm=llm,
        threads=int(llm.loaded.get("threads") or os.cpu_count() or 1),
        context=min(int(llm.model.context_limit), 4096),
        dtype=values["dtype"],
        gammas=tuple(gamma for gamma in dict.fromkeys(values["gamma"]) if gamma != "auto") or (_PEER_GAMMA,),
        looks_up=any(name in ("auto", "ngram", "suffix") for name in values["drafter"]),
        drafts=tuple((name, find(name.removeprefix("model:"), True, progress).path) for name in models),
    )
    return open_peers(values["against"], setup, progress=progress)


def _show_speed(target: str, results: Sequence[Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from headstart.bench.report import short

    console = Console()
    for temperature in dict.fromkeys(result.temperature for result in results):
        own = [result for result in results if result.temperature == temperature]
        how = "greedy" if temperature == 0 else f"temperature {temperature:g}"
        shown = Table(title=f"{target}, {how}: tokens/s, and × plain (95 % by prompt)", title_justify="left")
        shown.add_column("way", overflow="fold")
        gaps = any(result.largest_gap is not None for result in own)
        for heading in ("tok/s", "×", "95 %", "tok/call", "same", *(["gap"] if gaps else [])):
            shown.add_column(heading, justify="right")
        for category in dict.fromkeys(result.category for result in own):
            shown.add_section()
            shown.add_row(f"[bold]{escape(category)}[/bold]")
            for result in (one for one in own if one.category == category):
                shown.add_row(escape(short(result.way)), *_cells(result), *([_gap(result)] if gaps else []))
        console.print(shown)
        if gaps:
            console.print("same: share of plain's text before the first other token; gap: logits between the two there, at most")


def _cells(result: Any) -> list[str]:
    from headstart.bench.report import alike

    low, high = result.interval
    return [
        f"{result.tokens_per_second:.1f}",
        f"{result.speedup:.2f}",
        f"{low:.2f}–{high:.2f}",
        "–" if result.block_efficiency is None else f"{result.block_efficiency:.2f}",
        alike(result).partition(",")[0],
    ]


def _gap(result: Any) -> str:
    return "" if result.largest_gap is None else f"{result.largest_gap:.2f}"


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
