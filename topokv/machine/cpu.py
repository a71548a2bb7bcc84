"""The CPU as the operating system describes it: model, cores, caches; standard library first.

Linux is read from /proc and /sys, macOS asked through sysctl; elsewhere psutil and py-cpuinfo
answer where they are installed. What nobody can tell is None.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_CPUS = Path("/sys/devices/system/cpu")
_CPUINFO = Path("/proc/cpuinfo")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def cpu_model() -> str | None:
    """The CPU's name as its maker writes it."""
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string")
    for line in _lines(_CPUINFO):
        name, _, value = line.partition(":")
        if name.strip() == "model name" and value.strip():
            return value.strip()
    return _from_cpuinfo() or platform.processor() or None


def _from_cpuinfo() -> str | None:
    try:
        brand = import_module("cpuinfo").get_cpu_info().get("brand_raw")
    except Exception:  # not installed, or it does not know this machine
        return None
    return brand if isinstance(brand, str) and brand else None


def physical_cores() -> int | None:
    """Cores that are not hyper-threads of one another."""
    if sys.platform == "darwin":
        count = _sysctl("hw.physicalcpu")
        return int(count) if count and count.isdigit() else None
    siblings = {
        " ".join(_lines(path)) for path in _CPUS.glob("cpu[0-9]*/topology/thread_siblings_list")
    }
    return len(siblings) or _from_psutil()


def _from_psutil() -> int | None:
    try:
        psutil: Any = import_module("psutil")
        count = psutil.cpu_count(logical=False)
    except Exception:  # not installed, or it does not know this machine
        return None
    return int(count) if count else None


def cache_bytes(level: int) -> int | None:
    """The size of all caches of one level together."""
    if sys.platform == "darwin":
        size = _sysctl(f"hw.l{level}cachesize")
        return int(size) if size and size.isdigit() and int(size) else None
    caches: dict[str, int] = {}
    for folder in _CPUS.glob("cpu[0-9]*/cache/index[0-9]*"):
        if _first(folder / "level") == str(level) and _first(folder / "type") != "Instruction":
            size = parse_size(_first(folder / "size"))
            if size:
                # Each cache is listed by every CPU that shares it.
                caches[_first(folder / "shared_cpu_list")] = size
    return sum(caches.values()) or None


def parse_size(text: str) -> int | None:
    """Bytes of a size such as 512K; None for anything else."""
    number, unit = text[:-1], text[-1:]
    if unit.isdigit():
        number, unit = text, ""
    return int(number) * _UNITS.get(unit, 1) if number.isdigit() else None


def _first(path: Path) -> str:
    lines = _lines(path)
    return lines[0].strip() if lines else ""


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _sysctl(name: str) -> str | None:
    try:
        done = subprocess.run(
            ["sysctl", "-n", name], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
