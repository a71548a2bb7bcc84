"""The sessions, run by nox itself in a small copy of the project, with stand-ins for torch.

Nothing is downloaded: the copy's tests need only what this environment has already, and each
stand-in build of torch is a wheel of a few lines, made here and served from a folder.
"""

import base64
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from topokv.machine import wheels
from topokv.results import codec

ROOT = Path(__file__).parents[3]
# In place of the command line: a benchmark that says what it was asked.
STAND_IN_BENCH = """
import json, sys
if "--fail" in sys.argv:
    sys.exit("topokv bench: the stand-in fails")
with open(sys.argv[sys.argv.index("--output") + 1], "w") as file:
    json.dump(sys.argv[1:], file)
"""
TESTS = ("pytest", "pytest-json-report")
ROCM = wheels.backends()["rocm"]


def stand_in_torch(index, version, **runtimes):
    """Add to the folder `index` a wheel that looks like a build of torch."""
    told = {"__version__": version, "cuda": None, "hip": None} | runtimes
    info = f"torch-{version}.dist-info"
    files = {
        "torch/__init__.py": "",
        "torch/version.py": "".join(f"{name} = {value!r}\n" for name, value in told.items()),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    folder = index / "torch"
    folder.mkdir(parents=True, exist_ok=True)
    name = f"torch-{version}-py3-none-any.whl"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        hashes = (f"{path},sha256={digest(text)},{len(text)}" for path, text in files.items())
        wheel.writestr(f"{info}/RECORD", "\n".join([*hashes, f"{info}/RECORD,,"]))
    (folder / "index.html").write_text(f'<a href="{name.replace("+", "%2B")}">{name}</a>\n')
    return index


def digest(text):
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A folder with pytest and what it needs, copied from here, for the sessions' environments."""
    folder = tmp_path_factory.mktemp("packages")
    for name in requirements(*TESTS):
        distribution = importlib.metadata.distribution(name)
        for top in {Path(file).parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            source = Path(distribution.locate_file(top))
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, folder / top)
    # The benchmark's environment has numpy, which the stand-ins do without.
    numpy = folder / "numpy-2.0.dist-info"
    numpy.mkdir()
    (numpy / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 2.0\n")
    return folder


def requirements(*names):
    """The names of the installed distributions that these need, themselves included."""
    found, waiting = set(), [*names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            needs = map(Requirement, importlib.metadata.distribution(name).requires or [])
            waiting += [n.name for n in needs if not n.marker or n.marker.evaluate({"extra": ""})]
    return found


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The noxfile and the table of backends, with tests and a benchmark that take no time."""
    root = tmp_path_factory.mktemp("project")
    shutil.copy(ROOT / "noxfile.py", root)
    table = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = table[table.index("[tool.topokv]") : table.index("[tool.hatch")]
    needs = (
        "[project]\ndependencies = []\n[project.optional-dependencies]\nreport = []\nmachine = []\n"
        f"[dependency-groups]\ntest = {[*TESTS]}\n"
    )
    (root / "pyproject.toml").write_text(needs + table, encoding="utf-8")
    nothing_large = shutil.ignore_patterns("data", "__pycache__")
    shutil.copytree(ROOT / "topokv", root / "topokv", ignore=nothing_large)
    (root / "topokv/__main__.py").write_text(STAND_IN_BENCH, encoding="utf-8")
    for folder in ("cpu", "rocm"):
        test = root / f"tests/{folder}/test_{folder}.py"
        test.parent.mkdir(parents=True)
        test.write_text("import torch.version\n\ndef test_hip():\n    assert torch.version.hip\n")
    return root


@pytest.fixture
def nox(project, packages, monkeypatch):
    """Runs nox in the copy: (exit code, output). Backends' devices are absent unless forced."""
    for name in ("CUDA", "ROCM"):
        monkeypatch.setenv(f"TOPOKV_DEVICE_{name}", "absent")
        # An index that is empty, so that nothing is ever downloaded.
        monkeypatch.setenv(f"TOPOKV_INDEX_{name}", (project / "nowhere").as_uri())
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", (project / "nowhere").as_uri())
    monkeypatch.setenv("PYTHONPATH", str(packages))
    here = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", os.pathsep.join([here, os.environ["PATH"]]))
    # New environments share one pip, whose modules are compiled already: half of the time.
    monkeypatch.setenv("VIRTUALENV_SYMLINK_APP_DATA", "1")

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "nox", "-s", *arguments],
            cwd=project,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        return done.returncode, done.stdout

    return run


def row_of(project, name):
    """The one row of a results file that a session itself left."""
    (row,) = codec.read(project / "results" / f"{name}.json").rows
    return row.status, row.step, row.reason


def test_every_backend_has_tests_and_a_benchmark():
    command = [sys.executable, "-m", "nox", "--list"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in wheels.backends():
        assert f" tests_{name} -> " in listed
        assert f" bench_{name} -> " in listed


def test_bench_without_a_device_is_skipped_with_the_reason(nox, project):
    code, output = nox("bench_cuda", "bench_rocm")
    assert code == 0, output
    for name in ("cuda", "rocm"):
        reason = f"TOPOKV_DEVICE_{name.upper()}=absent"
        assert row_of(project, f"bench-{name}") == ("skipped", "probe", reason)
        assert f"Session bench_{name} skipped: {reason}" in output
    assert "pip install" not in output


def test_a_required_device_that_is_missing_fails_and_later_sessions_run(nox, project):
    code, output = nox("bench_cuda", "bench_rocm", "--", "--require-device")
    assert code == 1, output
    for name in ("cuda", "rocm"):
        reason = f"no usable {name} device: TOPOKV_DEVICE_{name.upper()}=absent"
        assert row_of(project, f"bench-{name}") == ("failed", "probe", reason)


def test_right_build_runs_the_cpu_tests_and_its_own(nox, project, tmp_path, monkeypatch):
    index = stand_in_torch(tmp_path, ROCM.wheel, hip="7.2.53211")
    monkeypatch.setenv("TOPOKV_INDEX_ROCM", index.as_uri())
    code, output = nox("tests_rocm", "--", "--seq-len", "16384")
    assert code == 0, output
    report = json.loads((project / "results/tests-rocm.json").read_text())
    assert [test["nodeid"] for test in report["tests"]] == [
        "tests/cpu/test_cpu.py::test_hip",
        "tests/rocm/test_rocm.py::test_hip",
    ]
    # The benchmark's session has torch already: nothing is left to install it from.
    shutil.rmtree(index / "torch")
    monkeypatch.setenv("TOPOKV_DEVICE_ROCM", "usable")
    code, output = nox("bench_rocm", "--", "--seq-len", "16384")
    assert code == 0, output
    ran = json.loads((project / "results/bench-rocm.json").read_text())
    assert ran[:3] == ["bench", "--device", "rocm"]
    assert ran[-2:] == ["--seq-len", "16384"]


def test_wrong_build_is_named_and_not_kept(nox, project, tmp_path, monkeypatch):
    cuda = wheels.backends()["cuda"]
    monkeypatch.setenv("TOPOKV_DEVICE_CUDA", "usable")
    monkeypatch.setenv("TOPOKV_INDEX_CUDA", stand_in_torch(tmp_path, cuda.version).as_uri())
    wrong = wheels.wrong_build(cuda, wheels.Build(cuda.version, {}))
    code, output = nox("bench_cuda")
    assert code == 1, output
    assert row_of(project, "bench-cuda") == ("failed", "verify", wrong)
    assert f"Session bench_cuda aborted: verify: {wrong}" in output
    # The right one takes its place as soon as it can be had.
    stand_in_torch(tmp_path, cuda.wheel, cuda="13.0")
    code, output = nox("bench_cuda", "--", "--fail")
    assert row_of(project, "bench-cuda") == (
        "failed",
        "benchmark",
        "topokv bench: the stand-in fails",
    )
    assert code == 1, output


def test_no_wheel_fails_in_one_line_and_replaces_older_results(nox, project):
    stale = project / "results/tests-rocm.json"
    stale.parent.mkdir(exist_ok=True)
    stale.write_text("{}")
    code, output = nox("tests_rocm", "--", "--torch-version", "2.12.0")
    assert code == 1, output
    line = wheels.not_installed(
        ROCM.at("2.12.0"),
        (project / "nowhere").as_uri(),
        True,
        "No matching distribution found for torch==2.12.0+rocm7.2",
    )
    assert row_of(project, "tests-rocm") == ("failed", "install", line)
    assert f"aborted: install: {line}" in output
    assert "Traceback" not in output


def test_an_environment_that_has_torch_is_used_as_it_is(
    nox, project, packages, tmp_path, monkeypatch
):
    wheel = (
        stand_in_torch(tmp_path, "2.9.0a0", cuda="12.9") / "torch/torch-2.9.0a0-py3-none-any.whl"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(wheel), str(packages)]))
    monkeypatch.setenv("TOPOKV_DEVICE_CUDA", "usable")
    code, output = nox("bench_cuda", "--no-venv", "--no-install", "--", "--output", "mine.json")
    assert code == 0, output
    assert json.loads((project / "mine.json").read_text())[1:3] == ["--device", "cuda"]
