"""A benchmark from end to end where nothing is there that Linux alone has."""

import os
import sys
from pathlib import Path

import pytest

import topokv
from topokv.bench import Settings
from topokv.bench.parent import Job, measure
from topokv.results import read

# What Windows or macOS lack, taken away before anything of topokv is loaded; and what is optional.
BARE = """
import os, pathlib, sys

for name in ("fcntl", "resource", "psutil", "cpuinfo", "pynvml"):
    sys.modules[name] = None
for name in ("sched_getaffinity", "sysconf"):
    if hasattr(os, name):
        delattr(os, name)

def hidden(method):
    def ask(self, *args, **kwargs):
        if str(self).startswith(("/proc", "/sys")):
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return method(self, *args, **kwargs)
    return ask

for name in ("open", "read_text", "read_bytes"):
    setattr(pathlib.Path, name, hidden(getattr(pathlib.Path, name)))
every = pathlib.Path.glob
pathlib.Path.glob = lambda self, *args, **kwargs: (
    iter(()) if str(self).startswith(("/proc", "/sys")) else every(self, *args, **kwargs)
)
"""
WORKER = BARE + "from topokv.bench import worker\nworker.main()\n"


@pytest.fixture
def bare(monkeypatch):
    """This process as bare as the worker; all of it comes back afterwards."""
    for name in ("fcntl", "resource"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("sched_getaffinity", "sysconf"):
        monkeypatch.delattr(os, name, raising=False)


def test_a_run_without_what_linux_alone_has_measures_and_says_what_it_can_not_tell(bare, tmp_path):
    output = tmp_path / "bench.json"
    job = Job(
        Settings(
            kv=("gaussian",),
            seq_len=64,
            block_size=8,
            selected_tokens=(32,),
            heads=2,
            head_dim=8,
            processes=1,
            rounds=2,
            max_seconds=1.0,
        ),
        output,
        tmp_path,
        ("topokv", "bench"),
        notify=lambda step: None,
        warn=lambda line: None,
        worker=(sys.executable, "-c", WORKER),
    )
    assert {row.status for row in measure(job).rows} == {"ok"}
    found = read(output)
    assert found.rows[0].metrics["speedup"] > 0
    assert {found.environment[name] for name in ("affinity", "memory_bytes")} == {None}
    assert found.rows[0].metrics["minor_faults"] is None
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


def test_no_file_of_the_package_names_a_module_that_one_platform_lacks():
    """At import: a module may be looked for when it is used, or with another way to go on."""
    package = Path(topokv.__file__).parent
    lines = [
        line
        for path in package.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith(("import ", "from "))
    ]
    lacking = {"fcntl", "resource", "termios", "tty", "pwd", "grp", "pty", "msvcrt", "winreg"}
    assert [line for line in lines if line.split()[1].split(".")[0] in lacking] == []
