"""What all tests share: the report says where it ran, and nothing about whose machine it was."""

from __future__ import annotations

import os
import signal
import site
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from topokv.machine import wheels

# The asserts of what is shared explain themselves as those of test files do.
pytest.register_assert_rewrite("device_checks")

# A job that a shell put in the background ignores Ctrl-C, and so would all that its tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_json_modifyreport(json_report: dict[str, Any]) -> None:
    """Name the backend and its environment, which the plugin leaves empty, and cut paths short."""
    places = _places(Path(json_report["root"]))
    for name, value in json_report.items():
        json_report[name] = _without(places, value)
    backend = os.environ.get("TOPOKV_BACKEND", wheels.installed_build().backend)
    json_report["topokv"] = {"backend": backend, "environment": _environment()}


def _environment() -> dict[str, Any]:
    """The environment as benchmarks record it, of the device that the tests could use."""
    import torch

    from topokv.machine import backend_of, describe

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return describe(device, backend_of(device))


def _places(root: Path) -> list[tuple[str, str]]:
    """Folders of this machine and what to write in their place, the longest first."""
    places = [
        (root, "."),
        (Path.home(), "~"),
        (Path(tempfile.gettempdir()), "<tmp>"),
        (Path(sys.prefix), "<environment>"),
        (Path(sys.base_prefix), "<python>"),
        *((Path(folder), "<site-packages>") for folder in site.getsitepackages()),
    ]
    texts = {(str(path), shown) for place, shown in places for path in (place, place.resolve())}
    # A home that is the root of everything would take every slash along.
    whole = {pair for pair in texts if pair[0] != Path(pair[0]).anchor}
    return sorted(whole, key=lambda pair: -len(pair[0]))


def _without(places: list[tuple[str, str]], value: Any) -> Any:
    """`value`, a JSON value, with every folder in `places` shortened in every string."""
    if isinstance(value, dict):
        return {name: _without(places, item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without(places, item) for item in value]
    if isinstance(value, str):
        for place, shown in places:
            value = value.replace(place, shown)
    return value
