"""The house: imports go down only, from room to room, and nothing heavy loads before it is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import topokv

PACKAGE = Path(topokv.__file__).parent

# Rooms from the ground up: a room imports only from rooms on lower floors.
FLOORS = (
    {"core"},
    {"tensors", "stats", "machine"},
    {"scheduling", "results", "timing"},
    {"inputs", "attention", "report"},
    {"quality", "bench"},
    {"bench.parent", "bench.worker"},
    {"cli"},
)
# Rooms that no import may make load torch.
WITHOUT_TORCH = ("core", "stats", "machine", "results", "report", "bench", "bench.parent", "cli")


def room_of(module):
    """The room of `topokv.room.file`, without `topokv.`; the two sides of `bench` are rooms too."""
    parts = module.split(".")[1:]
    both = ".".join(parts[:2])
    return both if floor(both) else parts[0]


def floor(room):
    """The room's floor, counted from 1; 0 for what is no room."""
    return next((i for i, rooms in enumerate(FLOORS, 1) if room in rooms), 0)


def modules():
    """Every module of the package that lies in a room, and its file."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if len(parts) > 2:
            found.append((".".join(parts).removesuffix(".__init__"), path))
    return found


each_module = pytest.mark.parametrize(
    ("module", "path"), modules(), ids=[name.removeprefix("topokv.") for name, _ in modules()]
)


def imports(path):
    """The modules of this package that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("topokv."):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("topokv."))


def from_other_rooms(module, path):
    return [name for name in imports(path) if room_of(name) != room_of(module)]


def upward(module, path):
    """A sentence for each import of a file that does not go down."""
    here = floor(room_of(module))
    return [
        f"{module} (floor {here}) imports {name} (floor {floor(room_of(name))})"
        for name in from_other_rooms(module, path)
        if floor(room_of(name)) >= here
    ]


def test_rooms_are_all_there_is():
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert files == {"__init__.py", "__main__.py", "py.typed"}
    assert {room_of(module) for module, _ in modules()} == set().union(*FLOORS)


@each_module
def test_imports_go_down_only(module, path):
    assert upward(module, path) == []


def test_an_import_upward_is_named(tmp_path):
    path = tmp_path / "ratios.py"
    path.write_text("from topokv.cli import main\n")
    said = ["topokv.stats.ratios (floor 2) imports topokv.cli (floor 7)"]
    assert upward("topokv.stats.ratios", path) == said


@each_module
def test_other_rooms_are_entered_by_their_door(module, path):
    names = from_other_rooms(module, path)
    assert [name for name in names if name != f"topokv.{room_of(name)}"] == []


def test_imports_inside_a_room_run_in_no_circle():
    # A room's own door names all of its files, which is no need of theirs.
    needs = {
        module: [name for name in imports(path) if name != f"topokv.{room_of(module)}"]
        for module, path in modules()
        if path.name != "__init__.py"
    }
    done = set()

    def visit(module, way):
        assert module not in way, " → ".join([*way, module])
        if module not in done:
            for name in needs.get(module, ()):
                visit(name, [*way, module])
            done.add(module)

    for module in needs:
        visit(module, [])


@pytest.mark.parametrize(
    "code",
    [
        "import topokv; dir(topokv)",
        "from topokv.cli import build_parser; build_parser()",
        *(f"import topokv.{room}" for room in WITHOUT_TORCH),
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


def test_the_version_is_that_of_the_package():
    stated = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{topokv.__version__}"' in stated
