"""`topokv devices`: for each backend, what can be used here, why, and which wheel it would get."""

from __future__ import annotations

import argparse
import textwrap
from collections import Counter
from collections.abc import Iterator

from topokv.machine import Backend, Device, Probe, backends, index_url, probe

WIDTH = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--torch-version",
        metavar="VERSION[+TAG]",
        help="ask about another torch than the matrix's (2.13.0+cu126)",
    )


def run(args: argparse.Namespace) -> int:
    """Print a paragraph for each backend; 0, whatever is usable."""
    rows = [backend.at(args.torch_version) for backend in backends().values()]
    print("\n\n".join("\n".join(_paragraph(backend)) for backend in rows))
    return 0


def _paragraph(backend: Backend) -> Iterator[str]:
    """The lines that tell about one backend."""
    found = probe(
        backend.probe,
        runtime_needed=backend.runtime_version,
        driver_minimum=backend.driver_minimum,
    )
    usable = "usable" if found.usable else "not usable"
    yield from _entry(f"{backend.name:8}", f"{usable}: {found.reason}")
    for device, count in Counter(found.devices).items():
        yield from _entry("        device  ", _described(device, count))
    if found.driver or found.runtime:
        yield from _entry("        driver  ", _driver(found))
    yield from _entry("        wheel   ", f"torch {backend.wheel}")
    yield from _entry("        from    ", index_url(backend) or "pip's own configuration")


def _entry(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _described(device: Device, count: int) -> str:
    many = f"{count} x " if count > 1 else ""
    memory = f", {device.memory_bytes / 2**30:.1f} GiB" if device.memory_bytes else ""
    return f"{many}{device.name}{memory}"


def _driver(found: Probe) -> str:
    runs = f"runs up to {found.runtime}" if found.runtime else None
    return ", ".join(part for part in (found.driver, runs) if part)
