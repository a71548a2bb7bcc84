"""The house: imports go down only, and nothing heavy loads before it is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import topokv

PACKAGE = Path(topokv.__file__).parent

# Rooms from the ground up: a room imports only from rooms below its own line.
FLOORS = (
    {"choices", "files"},
    {
        *("intervals", "landmarks", "machine", "probe"),
        *("progress", "record", "schedule", "texts", "wheels"),
    },
    {"cache", "summaries"},
    {"blocks", "captures", "environment", "timing"},
    {"selectors", "workload", "attention"},
    {"mixture", "quality", "capture"},
    {"scheduler", "evaluation", "capture_folder"},
    {"compare"},
    {"report"},
    {"bench"},
    {"cli"},
    {"__main__"},
)


def rooms():
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room != "__init__":
            yield room, path


def imported_rooms(path):
    """Rooms of this package that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("topokv"):
            parts = (node.module or "").split(".")
            yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("topokv."))


def floor(room):
    return next((i for i, names in enumerate(FLOORS) if room in names), None)


def test_every_room_has_a_floor():
    assert {room for room, _ in rooms() if floor(room) is None} == set()


@pytest.mark.parametrize("path", [path for _, path in rooms()], ids=lambda p: p.stem)
def test_imports_go_down_only(path):
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    others = {name for name in imported_rooms(path) if name != room and floor(name) is not None}
    assert {name for name in others if floor(name) >= floor(room)} == set()


@pytest.mark.parametrize(
    "code",
    [
        "import topokv; dir(topokv)",
        "from topokv.cli import build_parser; build_parser()",
    ],
)
def test_torch_is_not_loaded_before_it_is_used(code):
    check = f"import sys; {code}; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=PACKAGE.parent).returncode == 0


def test_every_command_file_is_on_the_command_line():
    from topokv.cli import COMMANDS

    files = {path.stem for path in (PACKAGE / "cli").glob("*.py")} - {"__init__"}
    assert files == {command.name for command in COMMANDS}


def test_every_public_name_loads():
    assert all(getattr(topokv, name) is not None for name in topokv.__all__)


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="^module 'topokv' has no attribute 'nothing'$"):
        _ = topokv.nothing
