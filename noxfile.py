"""The matrix: one session for each thing that a person or a CI job runs.

What follows `--` goes to the benchmark (`nox -s bench_cpu -- --seq-len 4096`), result files and
folders to the report. The sessions themselves read `--require-device`, which makes a missing
device a failure, and `--torch-version VERSION[+TAG]`. pytest's options go into PYTEST_ADDOPTS.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal, NoReturn

import nox
from nox.command import CommandFailed

# nox does not put the noxfile's folder on the path, and topokv is not installed where nox is.
ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))

from topokv import probe, record, wheels  # noqa: E402

nox.needs_version = ">=2026.8.10"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests_cpu", "report"]

BACKENDS = wheels.backends()
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
# What topokv needs beside torch, which is never left to a resolver.
LIGHT = [need for need in PROJECT["project"]["dependencies"] if not need.startswith("torch")]
RESULTS = ROOT / "results"
# torch takes up to several GB: each build is installed once, and every environment sees it there.
SHARED_TORCH = ROOT / ".nox" / "torch"


def group(name: str) -> list[str]:
    """The requirements of a dependency group."""
    return list(nox.project.dependency_groups(PROJECT, name))


@dataclass(frozen=True)
class Asked:
    """What was asked for after `--`, taken apart by who reads it."""

    require_device: bool
    torch_version: str | None
    output: Path | None
    files: list[str]
    bench: list[str]


def asked(session: nox.Session) -> Asked:
    """The session's positional arguments; every session gets those of all."""
    parser = argparse.ArgumentParser(prog="nox --", add_help=False, allow_abbrev=False)
    parser.add_argument("--require-device", action="store_true")
    parser.add_argument("--torch-version")
    parser.add_argument("--output", type=Path)
    own, rest = parser.parse_known_args(session.posargs)
    files = [word for word in rest if word.endswith(".json") or Path(word).is_dir()]
    bench = [word for word in rest if word not in files]
    return Asked(own.require_device, own.torch_version, own.output, files, bench)


@dataclass(frozen=True)
class Results:
    """The results file of one session, which is there in the end whatever happens."""

    session: nox.Session
    kind: Literal["bench", "tests"]
    backend: str
    path: Path

    @classmethod
    def begin(
        cls,
        session: nox.Session,
        kind: Literal["bench", "tests"],
        backend: str,
        path: Path | None = None,
    ) -> Results:
        """No results yet: an earlier run's file goes, or a crash would pass it off as new."""
        path = path or RESULTS / f"{kind}-{backend}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        return cls(session, kind, backend, path)

    def leave(self, status: record.Status, step: record.Step, reason: str) -> None:
        """Write the one row that says where this session ended and why."""
        row = record.Row(status=status, step=step, reason=reason)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        run = record.Run(kind=self.kind, backend=self.backend, created=created, rows=(row,))
        record.write(self.path, run)

    def fail(self, step: record.Step, reason: str) -> NoReturn:
        """End the session, and say why in the results unless the command has said it there."""
        if not self.path.exists():
            self.leave("failed", step, reason)
        self.session.error(f"{step}: {reason}")

    @contextmanager
    def step(self, step: record.Step, last_line: Callable[[], str] = str) -> Iterator[None]:
        """Fail the session where this step fails; `last_line` tells what a command last said."""
        try:
            yield
        except CommandFailed as error:
            self.fail(step, last_line() or str(error))
        except (OSError, ValueError) as error:
            self.fail(step, str(error))
        except KeyboardInterrupt:
            if not self.path.exists():
                self.leave("interrupted", step, "interrupted")
            raise


@contextmanager
def heard(said: deque[str]) -> Iterator[IO[str] | None]:
    """A stream for a command's standard error: shown as it comes, its lines kept in `said`.

    None on a terminal, where the command itself must see the terminal to show its progress.
    """
    if sys.stderr.isatty():
        yield None
        return
    read, write = os.pipe()

    def pump() -> None:
        with os.fdopen(read, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                print(line, end="", file=sys.stderr, flush=True)
                said.append(line.strip())

    pumping = threading.Thread(target=pump)
    pumping.start()
    try:
        with os.fdopen(write, "w") as stream:
            yield stream
    finally:
        pumping.join()


def install(session: nox.Session, backend: wheels.Backend, results: Results, *needs: str) -> None:
    """Install the backend's torch, then `needs`, and verify that the build is still that one.

    With `--no-venv --no-install` it is the torch that is here, of any version, for that backend.
    """
    own = session.virtualenv.is_sandboxed
    if own:
        share_torch(session, backend, results)
    log = RESULTS.with_name(".nox") / f"{session.name}.log"
    with results.step("install", lambda: wheels.last_error(log)):
        log.unlink(missing_ok=True)
        # torch once more, with what else is installed: nothing may replace it.
        session.install(*needs, f"torch=={backend.version}", env={"PIP_LOG": str(log)})
    verify(session, backend, results, exact=own)


def share_torch(session: nox.Session, backend: wheels.Backend, results: Results) -> None:
    """Let the session's environment see the one folder that holds the backend's torch."""
    ask = "import sys, sysconfig as s; print(sys.implementation.cache_tag, s.get_path('purelib'))"
    answer = session.run_install("python", "-c", ask, silent=True, log=False)
    if not isinstance(answer, str):  # --no-install: the environment stays as it is
        return
    python, site = answer.strip().split(" ", 1)
    shared = SHARED_TORCH / f"{backend.name}-{backend.wheel}-{python}"
    (Path(site) / "topokv_torch.pth").write_text(f"{shared}\n", encoding="utf-8")
    if not (shared / "verified").exists():
        shutil.rmtree(shared, ignore_errors=True)
        install_torch(session, backend, shared, results)
        verify(session, backend, results)
        (shared / "verified").touch()


def install_torch(
    session: nox.Session, backend: wheels.Backend, target: Path, results: Results
) -> None:
    """Install the backend's torch and its dependencies into the folder `target`."""
    url = wheels.index_url(backend)
    answers = not url or wheels.index_answers(url)
    if not answers:
        session.warn(f"{url} does not answer: pip's own configuration is to find torch")
    log = target.parent / f"{target.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    for ask in wheels.installs(backend, url if answers else ""):
        log.unlink(missing_ok=True)
        session.install(
            *("--target", str(target), ask.requirement, *ask.options),
            # TMPDIR: pip unpacks beside the target, to rename and not to copy several GB.
            env={"PIP_LOG": str(log), "PIP_RETRIES": "2", "TMPDIR": str(log.parent)},
            success_codes=range(256),
        )
        if (target / "torch").is_dir():
            return
    results.fail("install", wheels.not_installed(backend, url, answers, wheels.last_error(log)))


def verify(
    session: nox.Session, backend: wheels.Backend, results: Results, *, exact: bool = True
) -> None:
    """Fail the session unless the torch that its Python imports is the backend's build."""
    answer = str(session.run("python", "-m", "topokv.wheels", silent=True, success_codes=[0, 1]))
    last_line = answer.strip().splitlines()[-1]
    if not last_line.startswith("{"):
        results.fail("verify", last_line)
    wrong = wheels.wrong_build(backend, wheels.Build(**json.loads(last_line)), exact=exact)
    if wrong is not None:
        results.fail("verify", wrong)


def usable_device(backend: wheels.Backend, results: Results, options: Asked) -> probe.Probe:
    """What the backend's probe says; a device that is promised and missing ends the session."""
    found = probe.probe(
        backend.probe,
        runtime_needed=backend.runtime_version,
        driver_minimum=backend.driver_minimum,
    )
    if options.require_device and not found.usable:
        results.fail("probe", f"no usable {backend.name} device: {found.reason}")
    return found


def run_tests(session: nox.Session, backend: wheels.Backend) -> None:
    options = asked(session)
    results = Results.begin(session, "tests", backend.name)
    with results.step("probe"):
        backend = backend.at(options.torch_version)
        usable_device(backend, results, options)
    install(session, backend, results, *LIGHT, *group("test"))
    session.env["TOPOKV_BACKEND"] = backend.name
    if options.require_device:
        session.env["TOPOKV_REQUIRE_DEVICE"] = "1"
    report = ("--json-report", f"--json-report-file={results.path}", "--json-report-omit=keywords")
    with results.step("test"):
        folders = dict.fromkeys([BACKENDS["cpu"].tests, backend.tests])
        session.run("python", "-m", "pytest", *report, *folders)
    if not results.path.exists():
        results.fail("test", "pytest left no report")


def run_bench(session: nox.Session, backend: wheels.Backend) -> None:
    options = asked(session)
    results = Results.begin(session, "bench", backend.name, options.output)
    with results.step("probe"):
        backend = backend.at(options.torch_version)
        found = usable_device(backend, results, options)
    if not found.usable:
        results.leave("skipped", "probe", found.reason)
        session.skip(found.reason)
    install(session, backend, results, *LIGHT, "numpy")
    own = ("--device", backend.device, "--output", str(results.path))
    said: deque[str] = deque(maxlen=1)
    with results.step("benchmark", lambda: " ".join(said)), heard(said) as stderr:
        session.run("python", "-m", "topokv", "bench", *options.bench, *own, stderr=stderr)


def add_sessions(backend: wheels.Backend) -> None:
    """The two sessions of one row of the table."""

    @nox.session(name=f"tests_{backend.name}")
    def tests(session: nox.Session) -> None:
        """Run the CPU tests under this build of torch, and its own where it has a device."""
        run_tests(session, backend)

    @nox.session(name=f"bench_{backend.name}")
    def bench(session: nox.Session) -> None:
        """Benchmark on this backend's device; skipped, with the reason, where there is none."""
        run_bench(session, backend)


for row in BACKENDS.values():
    add_sessions(row)


@nox.session
def report(session: nox.Session) -> None:
    """Merge results/, and files and folders named after --, into one comparison table."""
    session.install(*LIGHT)
    session.run("python", "-m", "topokv", "report", *asked(session).files)


@nox.session(venv_backend="none")
def devices(session: nox.Session) -> None:
    """Say for each backend whether a device can be used here, and which wheel it would get."""
    session.run(sys.executable, "-m", "topokv", "devices")


@nox.session
def lint(session: nox.Session) -> None:
    """Check the format, the lint rules and the types."""
    session.install(*LIGHT, *group("lint"))
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy")
