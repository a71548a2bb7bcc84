"""Which torch each backend gets, from where, and whether what came is that build.

The table is `[tool.topokv]` in pyproject.toml. Standard library only: it is read before torch is.
`python -m topokv.machine.wheels` prints the build of torch that is installed, as JSON.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import sys
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

# An installed wheel carries its own copy of the table; a checkout has it one folder up.
TABLE_FILES = (
    Path(__file__).with_name("pyproject.toml"),
    Path(__file__).parents[2] / "pyproject.toml",
)
RUNTIMES = ("cuda", "hip", "xpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """One row of the table: a build of torch, and how to tell whether it can be used."""

    name: str
    version: str
    tag: str
    index: str
    tests: str
    runtime: str | None = None
    probe: str = "cpu"
    untagged: bool = False
    drivers: Mapping[str, str] = field(default_factory=dict)

    @property
    def wheel(self) -> str:
        """The exact version of the wheel; CPU wheels for macOS carry no tag."""
        untagged = sys.platform == "darwin" and self.runtime is None
        return self.version if untagged else f"{self.version}+{self.tag}"

    @property
    def index_variable(self) -> str:
        """The environment variable that replaces this backend's index."""
        return f"TOPOKV_INDEX_{self.name.upper()}"

    @property
    def driver_minimum(self) -> str | None:
        """The oldest driver that this tag runs on, where the table knows it."""
        return self.drivers.get(self.tag)

    @property
    def runtime_version(self) -> str | None:
        """The version of the runtime that the tag names: 13.0 for cu130, 7.2 for rocm7.2."""
        match = re.fullmatch(r"[a-z]+(\d+)\.?(\d)", self.tag)
        return f"{match[1]}.{match[2]}" if match else None

    def at(self, torch_version: str | None) -> Backend:
        """The same backend with another torch: `2.12.0`, or another tag too: `2.12.0+cu126`."""
        if torch_version is None:
            return self
        if not re.fullmatch(r"\d+(\.\d+)+[\w.]*(\+[\w.]+)?", torch_version):
            raise ValueError(
                "torch version must look like 2.13.0, or 2.13.0+cu126 to choose the build too, "
                f"got {torch_version!r}"
            )
        version, _, tag = torch_version.partition("+")
        return replace(self, version=version, tag=tag or self.tag)


@dataclass(frozen=True, slots=True)
class Install:
    """One way to ask pip for torch: the requirement and the options before it."""

    requirement: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Build:
    """A torch that is installed: its version and the runtimes that it was built for."""

    version: str
    runtimes: Mapping[str, str | None]

    @property
    def backend(self) -> str:
        """`cuda`, `rocm`, `xpu` or `cpu`."""
        built_for = [name for name in RUNTIMES if self.runtimes.get(name)]
        return {"hip": "rocm"}.get(built_for[0], built_for[0]) if built_for else "cpu"


def backends() -> dict[str, Backend]:
    """The table's backends by name, in its order."""
    path = next((file for file in TABLE_FILES if file.is_file()), TABLE_FILES[-1])
    table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["topokv"]
    return {
        name: Backend(name=name, version=table["torch"], **row)
        for name, row in table["backends"].items()
    }


def index_url(backend: Backend, environ: Mapping[str, str] = os.environ) -> str:
    """The index that has this backend's wheel; empty: pip's own configuration is to find it."""
    return environ.get(backend.index_variable, backend.index.format(tag=backend.tag)).strip()


def index_answers(url: str, timeout: float = 5.0) -> bool:
    """Whether the package index at `url` answers: asked once, where pip tries for a minute."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return True
    without_user = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    page = f"{urllib.parse.urlunsplit(without_user).rstrip('/')}/torch/"
    try:
        urllib.request.urlopen(page, timeout=timeout).close()
    except urllib.error.HTTPError as error:
        return error.code == 401  # pip has the password
    except urllib.error.URLError as error:
        return isinstance(error.reason, ssl.SSLError)  # pip has its own certificates
    except (OSError, http.client.HTTPException):
        return False
    return True


def installs(backend: Backend, url: str) -> tuple[Install, ...]:
    """The ways to ask pip for this backend's torch, in the order to try them.

    `url` is an index that answers, or empty for pip's own configuration. The exact tag comes
    first, since without it another build is taken in silence. The untagged wheel is asked for only
    where it can be this build, and never of PyTorch's own index, where every build has its tag.
    """
    options = ("--index-url", url) if url else ()
    tagged = Install(f"torch=={backend.wheel}", options)
    if url == backend.index.format(tag=backend.tag) or not backend.untagged:
        return (tagged,)
    untagged = Install(f"torch==={backend.version}", options)
    return (tagged, untagged)


def not_installed(backend: Backend, url: str, answers: bool, error: str) -> str:
    """The line for a torch that pip did not install: what, from where, why, and what to set."""
    who = f"{url} has" if url and answers else "pip's own configuration has"
    silent = f"{url} does not answer and " if url and not answers else ""
    return f"{silent}{who} no torch {backend.wheel} ({error or 'pip failed'}); {_remedy(backend)}"


def last_error(log: Path) -> str:
    """The last error in a log of pip's; empty where there is none."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    errors = re.findall(r"^\S+ ERROR: (?!ResolutionImpossible)(.+)$", text, re.MULTILINE)
    return errors[-1].strip().rstrip(".") if errors else ""


def wrong_build(backend: Backend, build: Build, *, exact: bool = True) -> str | None:
    """The line that says why `build` is not this backend's, or None if it is.

    With `exact=False` any version for the right runtime will do, as somebody else installed it.
    """
    for name in RUNTIMES:
        found = build.runtimes.get(name)
        if (found is not None) != (name == backend.runtime):
            return _names_both(backend, build)
        if found is not None and exact and not found.startswith(backend.runtime_version or ""):
            return _names_both(backend, build)
    if exact and build.version.partition("+")[0] != backend.version:
        return _names_both(backend, build)
    return None


def _names_both(backend: Backend, build: Build) -> str:
    return (
        f"this is torch {build.version}, a {build.backend} build, "
        f"where the {backend.name} session needs {backend.wheel}; {_remedy(backend)}"
    )


def _remedy(backend: Backend) -> str:
    return (
        f"set {backend.index_variable} to an index that has it, "
        "or choose another build: -- --torch-version VERSION+TAG"
    )


def installed_build() -> Build:
    """The torch that this Python imports."""
    import torch.version as found

    return Build(found.__version__, {name: getattr(found, name, None) for name in RUNTIMES})


if __name__ == "__main__":
    build = installed_build()
    print(json.dumps({"version": build.version, "runtimes": dict(build.runtimes)}))
