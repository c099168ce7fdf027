"""`headstart models`: what can be named, what is here, and fetching what is not."""

from __future__ import annotations

import sys
from typing import Any

import click

from headstart import fetch
from headstart.cli.options import JSON, write_json
from headstart.errors import did_you_mean

__all__ = ["command"]


class _Verbs(click.Group):
    """A group that tells a model's name apart from a verb."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands:
            ctx.fail(
                f"no command {args[0]!r}{did_you_mean(args[0], self.commands)}; to fetch a model: headstart models fetch NAME"
            )
        return super().resolve_command(ctx, args)


@click.group("models", cls=_Verbs, invoke_without_command=True)
@JSON
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Models by name: list them, fetch them.

    Without a subcommand: the known models, and every GGUF file and Hugging Face folder in the models folder
    ($HEADSTART_MODELS, or ~/.cache/headstart/models)."""
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError(f"--json goes after {ctx.invoked_subcommand}", ctx)
        return
    models = _listing()
    if as_json:
        write_json({"folder": str(fetch.models_folder()), "models": models})
    else:
        _show(models)


@command.command("fetch", short_help="Fetch a model by name and print its path.")
@click.argument("name")
@click.option("--offline", is_flag=True, help="Never use the network: only say whether the model is here.")
@JSON
def fetch_command(name: str, offline: bool, as_json: bool) -> None:
    """Fetch NAME into the models folder, unless it is there already, and print its path."""
    from headstart.cli.view import Loading

    with Loading() as progress:
        path = fetch.fetch(name, offline=offline, progress=progress)
    if as_json:
        write_json({"name": name, "path": str(path), "size": path.stat().st_size})
    else:
        click.echo(path)


def _listing() -> list[dict[str, Any]]:
    """Known models first, then what else lies in the folder. `size` is in bytes; `path` is null for what is not here."""
    rows: list[dict[str, Any]] = []
    named = set()
    for name, model in fetch.KNOWN.items():
        path = fetch.find(name)
        named.add(path)
        here = {"path": str(path) if path else None, "here": path is not None}
        rows.append({"name": name, "kind": "gguf", "size": model.size, **here, "license": model.license, "about": model.about})
    for local in fetch.local_models():
        if local.path not in named:
            here = {"path": str(local.path), "here": True}
            rows.append({"name": str(local.path), "kind": local.kind, "size": local.size, **here, "license": None, "about": None})
    return rows


def _show(models: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    folder = fetch.models_folder()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", overflow="fold")
    table.add_column("size", justify="right")
    table.add_column("what")
    table.add_column("where", overflow="fold")
    for model in models:
        known = model["about"] is not None
        what = f"{model['about']} ({model['license']})" if known else {"gguf": "GGUF file", "folder": "folder"}[model["kind"]]
        where = "here" if model["here"] else f"not here: headstart models fetch {model['name']}"
        name = model["name"] if known else model["path"].removeprefix(f"{folder}/")
        table.add_row(name, f"{model['size'] / 1e6:,.0f} MB", what, where)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 500)  # a pipe has no edge to fold at
    console.print(table)
    console.print(f"\nmodels folder: {folder}", soft_wrap=True)
    console.print("A target may also be any .gguf file, Hugging Face folder or hub id.", style="dim")
