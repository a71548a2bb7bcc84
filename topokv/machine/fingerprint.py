"""The fingerprint: what machine and what build the numbers come from.

A field that can't be found out is None, never a guess. Nothing here names a host, user or path.
Three packages add detail where they are installed (`pip install topokv[machine]`): psutil,
py-cpuinfo and nvidia-ml-py.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from topokv.core import PACKAGE, __version__
from topokv.machine.cpu import cache_bytes, cpu_model, physical_cores

if TYPE_CHECKING:
    import torch

# What makes two runs comparable; times, commits and clocks are not part of it.
FINGERPRINT_FIELDS = (
    "os",
    "machine",
    "cpu_model",
    "cpu_capability",
    "physical_cores",
    "threads",
    "torch",
    "torch_build",
    "device",
    "driver",
    "runtime",
    "tf32",
)

T = TypeVar("T")


def describe(device: torch.device, backend: str) -> dict[str, Any]:
    """Every field of a result file's environment, its fingerprint last."""
    found = _project() | _build() | _machine() | _accelerator(device, backend)
    return found | {"fingerprint": fingerprint(found)}


def fingerprint(environment: Mapping[str, Any]) -> str:
    """12 hexadecimal digits that are equal where machine, device and build are."""
    kept = {name: environment.get(name) for name in FINGERPRINT_FIELDS}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


def _project() -> dict[str, Any]:
    folder = PACKAGE.parent
    commit = dirty = None
    # A copy installed into some other checkout is not that checkout's commit.
    if (folder / ".git").exists():
        commit = _git(folder, "rev-parse", "HEAD")
        status = _git(folder, "status", "--porcelain", "--untracked-files=no")
        dirty = None if status is None else bool(status)
    return {"project": __version__, "commit": commit, "dirty": dirty}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _build() -> dict[str, Any]:
    import torch

    version, _, tag = torch.__version__.partition("+")
    return {
        "torch": version,
        "torch_build": tag or None,
        "torch_cuda": torch.version.cuda,
        "torch_hip": getattr(torch.version, "hip", None),
        "torch_config": _without_paths(torch.__config__.show()),
        "python": platform.python_version(),
    }


def _without_paths(text: str) -> str:
    """`text` in one line, the build machine's absolute paths cut to their last names."""
    return re.sub(r"(?<![\w./])/(?:[\w.+-]+/)+", "", " ".join(text.split()))


def _machine() -> dict[str, Any]:
    import torch

    return {
        "os": platform.system(),
        "machine": platform.machine(),
        "cpu_model": cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "physical_cores": physical_cores(),
        "threads": torch.get_num_threads(),
        "affinity": _affinity(),
        "memory_bytes": _memory_bytes(),
        "l2_bytes": cache_bytes(2),
        "l3_bytes": cache_bytes(3),
    }


def _affinity() -> list[int] | None:
    """The CPUs that this process may run on; recorded, never set."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return sorted(os.sched_getaffinity(0))


def _memory_bytes() -> int | None:
    psutil = optional_module("psutil")
    if psutil is not None:
        return int(psutil.virtual_memory().total)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _accelerator(device: torch.device, backend: str) -> dict[str, Any]:
    import torch

    if backend == "cpu":
        return _no_accelerator() | {"device": cpu_model() or platform.machine() or "CPU"}
    properties = torch.cuda.get_device_properties(device)
    clocks = _clocks(device) if backend == "cuda" else {}
    hip = backend == "rocm"
    return _no_accelerator() | {
        "device": properties.name,
        "device_count": torch.cuda.device_count(),
        "device_memory_bytes": properties.total_memory,
        "device_l2_bytes": getattr(properties, "L2_cache_size", None),
        "runtime": getattr(torch.version, "hip", None) if hip else torch.version.cuda,
        "tf32": attempt(lambda: bool(torch.backends.cuda.matmul.allow_tf32)),
        **clocks,
    }


def _no_accelerator() -> dict[str, Any]:
    names = ("device_count", "driver", "runtime", "device_memory_bytes", "device_l2_bytes")
    return dict.fromkeys((*names, "clock_mhz", "default_clock_mhz", "tf32"))


def _clocks(device: torch.device) -> dict[str, Any]:
    """Driver and clocks of an NVIDIA device, by nvidia-ml-py; nothing without it."""
    nvml = optional_module("pynvml")
    if nvml is None:
        return {}
    handle = attempt(lambda: _nvml_handle(nvml, device))
    if handle is None:
        return {}
    clock = nvml.NVML_CLOCK_SM
    driver = attempt(nvml.nvmlSystemGetDriverVersion)
    return {
        "driver": driver.decode() if isinstance(driver, bytes) else driver,
        "clock_mhz": attempt(lambda: nvml.nvmlDeviceGetClockInfo(handle, clock)),
        "default_clock_mhz": attempt(
            lambda: nvml.nvmlDeviceGetDefaultApplicationsClock(handle, clock)
        ),
    }


def _nvml_handle(nvml: Any, device: torch.device) -> Any:
    import torch

    nvml.nvmlInit()
    # By identity: torch's numbering follows CUDA_VISIBLE_DEVICES, NVML's does not.
    identity = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    return nvml.nvmlDeviceGetHandleByUUID(identity)


def clock_share(device: torch.device) -> float | None:
    """A GPU's clock at this moment as a share of its default; None where it can't be read."""
    if device.type != "cuda":
        return None
    clocks = _clocks(device)
    now, default = clocks.get("clock_mhz"), clocks.get("default_clock_mhz")
    return now / default if now and default else None


def optional_module(name: str) -> Any | None:
    """The module of that name, None where it is not installed or does not load."""
    try:
        return import_module(name)
    except Exception:  # a broken optional package is an absent one
        return None


def attempt(find: Callable[[], T]) -> T | None:
    """What `find` returns, None where it raises: a driver may refuse any single question."""
    try:
        return find()
    except Exception:
        return None


def backend_of(device: torch.device) -> str:
    """The backend's name: torch calls ROCm devices "cuda" too, so the build is asked."""
    import torch

    if device.type != "cuda":
        return device.type
    return "rocm" if getattr(torch.version, "hip", None) else "cuda"
