"""`headstart plan`: which drafter, how long a draft, and whether it pays here at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from headstart.cli.machine import machine
from headstart.cli.options import DRAFT_OPTIONS, JSON, draft_options, listed, say, write_json
from headstart.cli.view import Loading
from headstart.errors import OptionError
from headstart.prompts import CATEGORIES, Prompt, builtin_prompts, read_prompts
from headstart.records import Options, Sampling
from headstart.verify import RULES

__all__ = ["check_report", "chosen_prompts", "command", "write_report"]

_LOAD_OPTIONS = (*DRAFT_OPTIONS, "engine", "dtype", "device", "threads", "offline")


@click.command("plan")
@click.option("--target", default="smollm2", show_default=True, metavar="REF", help="The model to be made faster.")
@click.option(
    "--drafter",
    multiple=True,
    default=("ngram",),
    show_default=True,
    metavar="D",
    help="A drafter to compare, as in generate; may be repeated.",
)
@draft_options
@click.option(
    "--gamma",
    multiple=True,
    default=("1,2,3,4,5,6,7,8",),
    show_default=True,
    callback=listed(int, "a whole number"),
    metavar="N[,N…]",
    help="Draft lengths to compare.",
)
@click.option(
    "--tree",
    multiple=True,
    default=("auto",),
    show_default=True,
    metavar="WIDTHxDEPTH[:NODES]|auto|none",
    help="Trees to compare, for drafters that grow them and rules that judge them; may be repeated. auto: the best tree found "
    "here, for drafters that run a model or a head.",
)
@click.option(
    "--rule",
    multiple=True,
    type=click.Choice(list(RULES)),
    help="A rule to compare; may be repeated. Default: block, and coupled where there is a temperature.",
)
@click.option(
    "--prompts",
    metavar="FILE",
    help="Your own prompts: text separated by lines of ---, or .jsonl. Default: a built-in mixed set.",
)
@click.option("--category", multiple=True, type=click.Choice(CATEGORIES), help="Of the built-in prompts, only these.")
@click.option("--each", type=click.IntRange(min=1), default=4, show_default=True, help="Built-in prompts of a category.")
@click.option("--max-tokens", type=click.IntRange(min=2), default=96, show_default=True, help="Tokens sampled after a prompt.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Sequences decoded side by side.")
@click.option(
    "--context", type=click.IntRange(min=8), default=256, show_default=True, help="Tokens in the cache where costs are measured."
)
@click.option("--repeats", type=click.IntRange(min=3), default=9, show_default=True, help="Rounds timed for each length.")
@click.option("--refresh", is_flag=True, help="Measure costs again, though they were measured here before.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Where chance starts.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.")
@click.option("--engine", default="auto", show_default=True, help="auto, native or transformers.")
@click.option("--dtype", default="auto", show_default=True, help="auto, float32 or bfloat16 (transformers only).")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--offline", is_flag=True, help="Never fetch anything.")
@click.option("--report", metavar="FILE", help="Write the plan as one HTML page.")
@JSON
def command(target: str, drafter: tuple[str, ...], as_json: bool, report: str | None, **values: Any) -> None:
    """Predict tokens per second for every drafter, draft length, tree and rule, and say what is best, off included.

    Costs are measured on this machine (and kept); how far drafts are kept is sampled on prompts."""
    prompts = chosen_prompts(values["prompts"], values["category"], values["each"])
    temperature = Sampling(temperature=values["temperature"]).temperature
    rules = list(dict.fromkeys(values["rule"])) or (["block", "coupled"] if temperature > 0 else ["block"])
    gammas = sorted({Options(gamma=n).longest_draft for n in values["gamma"]})
    values["tree"] = [tree for each in values["tree"] if (tree := Options.of(tree=each).tree) is not None]
    check_report(report)
    with Loading() as progress:
        plan = _made(target, drafter, prompts, rules, gammas, temperature, values, progress)
    if report is not None:
        from headstart.plan.report import report as page

        write_report(report, page(plan))
    if as_json:
        write_json(plan.to_json())
    else:
        _show(plan)


def chosen_prompts(file: str | None, categories: Sequence[str], each: int | None) -> list[Prompt]:
    """A user's own prompts, or built-in ones. Raises OptionError where both are asked for."""
    if file is None:
        return builtin_prompts(categories or CATEGORIES, each=each)
    if categories:
        raise OptionError(f"`category` chooses among built-in prompts, got {categories[0]!r} with --prompts; drop one of the two")
    return read_prompts(file)


def check_report(file: str | None) -> None:
    """Refuse a place that cannot be written, before minutes are spent."""
    if file is not None and not os.path.isdir(os.path.dirname(os.path.abspath(file))):
        raise OptionError(f"`report` must be in a folder that exists, got {file!r}")


def write_report(file: str, page: str) -> None:
    """One HTML page, and a word on where it is."""
    with open(file, "w", encoding="utf-8") as out:
        out.write(page)
    say(f"report written to {file}")


def _made(
    target: str,
    drafters: Sequence[str],
    prompts: Sequence[Prompt],
    rules: Sequence[str],
    gammas: Sequence[int],
    temperature: float,
    values: dict[str, Any],
    progress: Loading,
) -> Any:
    from headstart.costs import MeasuredRounds, find_costs, keep_costs, measure_rounds
    from headstart.generation import LLM
    from headstart.loading import load_many
    from headstart.plan.planner import Guesser, make_plan
    from headstart.plan.texts import sample_texts

    load_options = {name: values[name] for name in _LOAD_OPTIONS}
    loaded = load_many(target, ["none", *drafters], **load_options, progress=progress)
    keys = {each.llm.drafter.name: each.costs_key for each in loaded}
    how = {"batch": values["batch"], "context": values["context"], "repeats": values["repeats"], "gammas": list(gammas)}

    def measure(llm: LLM, rule: str) -> MeasuredRounds:
        key = {**keys[llm.drafter.name], **how, "rule": rule, "greedy": temperature == 0}
        kept = None if values["refresh"] else find_costs(key)
        if kept is not None:
            return kept
        found = measure_rounds(
            llm.model,
            llm.drafter,
            gammas,
            context=values["context"],
            batch=values["batch"],
            repeats=values["repeats"],
            rule=rule,
            sampling=Sampling(temperature=temperature),
            vocab_size=llm.vocab_size,
            stopper=llm.stopper,
            seed=values["seed"],
            progress=progress,
        )
        keep_costs(key, found)
        return found

    plain = loaded[0].llm
    texts = sample_texts(
        plain, prompts, max_tokens=values["max_tokens"], temperature=temperature, seed=values["seed"], progress=progress
    )
    return make_plan(
        plain,
        [Guesser(llm=each.llm, model=each.model, looks_up=each.looks_up) for each in loaded[1:]],
        texts,
        measure,
        rules=rules,
        gammas=gammas,
        trees=values["tree"],
        machine=machine(plain),
        settings={"temperature": temperature, "batch": values["batch"], "context": values["context"], "seed": values["seed"]},
        seed=values["seed"],
        progress=progress,
    )


def _show(plan: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=f"{plan.target}: predicted, {plan.num_prompts} prompts, {plan.num_tokens} tokens", title_justify="left")
    for heading in ("drafter", "γ or tree", "rule", "tok/s", "95 %", "×", "closed", "needs α"):
        shown.add_column(heading, justify="left" if heading == "drafter" else "right")
    for each in plan.candidates:
        low, high = each.interval
        shown.add_row(
            each.drafter,
            each.tree or str(each.gamma),
            each.rule or "–",
            f"{each.predicted_tokens_per_second:.1f}",
            f"{low:.1f}–{high:.1f}",
            f"{each.walltime_improvement:.2f}",
            "–" if each.closed_form is None else f"{each.closed_form:.2f}",
            "–" if each.break_even is None else f"{each.break_even:.2f}",
            style="bold" if each == plan.best else None,
        )
    console = Console()
    console.print(shown)
    best = plan.best
    if best.drafter == "none":
        console.print("Best: plain decoding; nothing compared here beats it.")
    else:
        size = f"--gamma {best.gamma}" if best.tree is None else f"--tree {best.tree}"
        console.print(f"Best: --drafter {best.drafter} {size} --rule {best.rule}", soft_wrap=True)
