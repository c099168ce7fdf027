"""`headstart convert`: a draft head's checkpoint from one published format into another."""

from __future__ import annotations

from pathlib import Path

import click

from headstart.cli.options import JSON, write_json

__all__ = ["command"]


@click.command("convert")
@click.argument("src")
@click.argument("dst")
@click.option("--to", "form", required=True, metavar="FORMAT", help="eagle, eagle3, speculators, medusa or vllm-medusa.")
@JSON
def command(src: str, dst: str, form: str, as_json: bool) -> None:
    """Write the head SRC, a folder or a hub id, into folder DST in another FORMAT, where the other format computes the same.

    Weights keep their bits. What would compute something else, or change the output's law, is refused with the reason."""
    from headstart.checkpoints import read_head, write_head
    from headstart.errors import OptionError
    from headstart.references import find_head

    if Path(dst).exists() and any(Path(dst).iterdir()):
        raise OptionError(f"`dst` must be a new or empty folder, got {dst!r}")
    head = read_head(find_head(src, False, lambda stage, fraction: click.echo(stage, err=True)))
    write_head(head, dst, form)
    files = sorted(str(path) for path in Path(dst).iterdir())
    if as_json:
        write_json({"source": src, "format": form, "files": files})
    else:
        click.echo("\n".join(files))
