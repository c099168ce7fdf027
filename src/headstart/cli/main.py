"""`headstart`: the group of verbs, loaded when called, and what every error looks like.

stdout is data, stderr is talk. Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong, 130 Ctrl-C.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from importlib import import_module

import click

from headstart import __version__
from headstart.cli.options import say
from headstart.errors import HeadstartError, did_you_mean

__all__ = ["cli", "main"]

# verb → one line of help; the command is `command` in headstart.cli.<verb>
VERBS = {
    "generate": "Generate text, with speculation, and say what it gained.",
    "theory": "The closed forms of speculative decoding, and their simulations.",
    "plan": "Which drafter, how long a draft, and whether it pays here.",
    "bench": "Measure what a model costs on this machine.",
    "convert": "A draft head's checkpoint from one format into another.",
    "train": "Train a drafter on the target's own answers.",
    "models": "Models by name: list them, fetch them.",
    "doctor": "What this machine and this installation can do.",
}


class _Verbs(click.Group):
    """A group that imports a verb's file only when the verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"headstart.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}{did_you_mean(args[0], VERBS) or '; see headstart --help'}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="headstart", message="%(prog)s %(version)s")
def cli() -> None:
    """Language models generate faster without changing what they say."""


def main(args: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 (closed by whoever called us: nothing to read)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (nobody listens)
    if sys.stdout is None:
        sys.exit(_fail("stdout is closed; send it to a file, a pipe or /dev/null", 1))
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # what libraries tell programmers; python -W brings it back
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets its escape, not a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:] if args is None else args))


def run(args: list[str]) -> int:
    """Run the command line; every failure is one line on stderr."""
    try:
        code = _invoke(args)
        sys.stdout.flush()
        return code
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message())
        return 2
    except click.ClickException as error:
        return _fail(error.format_message(), 2 if isinstance(error, click.UsageError) else 1)
    except HeadstartError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        say("interrupted")
        return 130
    except BrokenPipeError:
        # The reader has gone: point stdout at nothing, so that Python's own flush at exit stays quiet too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        return _fail("out of memory; ask for less (fewer draws, a shorter context, a smaller model)", 1)
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG, errno.EBADF):
            return _fail(f"stdout cannot be written: {error.strerror}; send it elsewhere", 1)
        return _fail(f"{error.strerror or error}: {error.filename}" if error.filename else str(error), 1)


def _invoke(args: list[str]) -> int:
    """The verb's exit code; its exceptions as they are (click's own `main` would take some of them)."""
    try:
        with cli.make_context("headstart", list(args)) as context:
            result = cli.invoke(context)
    except click.exceptions.Exit as done:  # --help, --version
        return done.exit_code
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    say("error: " + " ".join(message.split()))
    return code
