"""The command line: one file a command, and nothing heavy imported before a command runs."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn

from topokv.core import __version__, shown


@dataclass(frozen=True, slots=True)
class Command:
    """A command's name and line of help; its module has `add_arguments(parser)` and `run(args)`."""

    name: str
    help: str

    @property
    def module(self) -> str:
        return f"topokv.cli.{self.name}"


COMMANDS: tuple[Command, ...] = (
    Command("bench", "measure sparse against dense decode attention"),
    Command("report", "merge result files into one comparison table"),
    Command("compare", "judge one run against another of the same machine"),
    Command("quality", "measure what each selector keeps of a real model's attention"),
    Command("capture", "save a real model's q, K and V to a file"),
    Command("devices", "say which backends can be used here, and if not, why"),
)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all errors are."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; see {self.prog} --help\n")


def build_parser() -> Parser:
    """The whole command line as one parser."""
    parser = Parser(prog="topokv", description="A benchmark of sparse decode attention schedules.")
    parser.add_argument("--version", action="version", version=f"topokv {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        sub = commands.add_parser(command.name, help=command.help, description=command.help)
        module = import_module(command.module)
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command: 0 fine, 1 a failure that was measured, 2 bad input, 130 interrupted.

    What went wrong is one line on standard error.
    """
    for stream in (sys.stdout, sys.stderr):
        # A letter that the terminal's encoding lacks is no reason to lose the rest.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = _run(argv)
    return code if _flushed() else max(code, 1)


def _run(argv: Sequence[str] | None) -> int:
    name = "topokv"
    try:
        args = build_parser().parse_args(argv)
        name = f"topokv {args.command}"
        code: int = args.run(args)
    except BrokenPipeError:
        # Who reads our output has seen enough.
        return 1
    except (ValueError, OSError, ImportError) as error:
        print(f"{name}: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    return code


def _flushed() -> bool:
    """Whether all output could be written; the rest is dropped, or Python would try it again."""
    try:
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"topokv: standard output: {_one_line(error)}", file=sys.stderr)
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror.lower()
        return reason if error.filename is None else f"{shown(error.filename)}: {reason}"
    return " ".join(str(error).split()) or type(error).__name__
