"""The command line: one file a command, and nothing heavy imported before a command runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

import topokv


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
    Command("capture", "save a real model's q, K and V to a file"),
)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line as one parser."""
    parser = argparse.ArgumentParser(prog="topokv", description=topokv.__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"topokv {topokv.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        sub = commands.add_parser(command.name, help=command.help, description=command.help)
        module = import_module(command.module)
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command: 0 fine, 1 a failure that was measured, 2 bad input, in one line."""
    args = build_parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        return run(args)
    except (ValueError, OSError) as error:
        print(f"topokv {args.command}: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"topokv {args.command}: interrupted", file=sys.stderr)
        return 130


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror.lower()}"
    return " ".join(str(error).split()) or type(error).__name__
