"""Every command with its help, as Markdown: `python -m headstart.cli.reference` writes docs/commands.md."""

from __future__ import annotations

from collections.abc import Iterator

import click

from headstart.cli.main import cli

__all__ = ["reference"]


def reference() -> str:
    """The page, made from the same help that the terminal shows."""
    parts = [
        "# Commands",
        "",
        "Made by `make docs` from the commands' own help. stdout is data, stderr is talk; `--json` prints exactly one JSON",
        "document. Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong, 130 Ctrl-C.",
    ]
    for path, command, context in _commands(cli, click.Context(cli, info_name="headstart", **cli.context_settings)):
        with context.scope(cleanup=False):
            context.terminal_width = context.max_content_width = 100
            parts += ["", f"## {path}", "", "```", command.get_help(context).rstrip(), "```"]
    return "\n".join(parts) + "\n"


def _commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    yield context.command_path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _commands(child, click.Context(child, parent=context, info_name=name))


if __name__ == "__main__":
    print(reference(), end="")
