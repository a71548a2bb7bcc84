"""Whether a backend has a device that can be used here, and if not, why.

Standard library only: it runs before torch exists. Drivers are asked in a subprocess (this file,
run as a script), because a driver that hangs or crashes must not take its caller along.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CUDA_LIBRARIES = ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1", "nvcuda.dll")
NVML_LIBRARIES = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1", "nvml.dll")
CUDA_ERROR_NO_DEVICE = 100
ROCM_VISIBILITY = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
ANSWERS = {"usable": True, "absent": False}


@dataclass(frozen=True, slots=True)
class Device:
    """A device as its driver names it; memory in bytes, None where the driver does not say."""

    name: str
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """Usable or not, one sentence why, and what is visible."""

    usable: bool
    reason: str
    devices: tuple[Device, ...] = ()
    driver: str | None = None
    runtime: str | None = None


class NoDeviceError(Exception):
    """The sentence that says why there is no usable device."""


def probe(
    name: str,
    *,
    runtime_needed: str | None = None,
    driver_minimum: str | None = None,
    timeout: float = 10.0,
    root: Path = Path("/"),
) -> Probe:
    """What the driver of backend `name` says, or what TOPOKV_DEVICE_<NAME> says instead of it.

    `runtime_needed` is the version of the runtime that the wheel was built for (CUDA 13.0); a
    driver that is too old for it is not usable, and `driver_minimum` names the one to install.
    `root` is where /dev, /proc and /sys are looked for. Raises ValueError for an unknown name.
    """
    if name not in ASKED:
        raise ValueError(f"unknown probe {name!r}; expected one of {', '.join(map(repr, ASKED))}")
    forced = _forced(name)
    if forced is not None:
        return forced
    found = _ask(name, timeout, root)
    if found.usable and name == "cuda" and runtime_needed is not None:
        return _new_enough(found, runtime_needed, driver_minimum)
    return found


def _forced(name: str) -> Probe | None:
    """What the environment variable says in place of the driver, if it is set."""
    variable = f"TOPOKV_DEVICE_{name.upper()}"
    answer = os.environ.get(variable, "").strip()
    if not answer:
        return None
    if answer not in ANSWERS:
        raise ValueError(f"{variable} must be 'usable' or 'absent', got {answer!r}")
    return Probe(ANSWERS[answer], f"{variable}={answer}")


def _ask(name: str, timeout: float, root: Path) -> Probe:
    """The answer of this file run as a script for `name`."""
    child = subprocess.Popen(
        [sys.executable, "-I", __file__, name, str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    try:
        out, _ = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        # A process stuck inside the kernel does not die: wait a moment, not for ever.
        with suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=1)
        return Probe(False, f"the driver did not answer within {timeout:g} s")
    if child.returncode != 0:
        return Probe(False, f"the driver ended the probe with exit code {child.returncode}")
    return _from_json(json.loads(out))


def _from_json(data: dict[str, Any]) -> Probe:
    return Probe(**data | {"devices": tuple(Device(**device) for device in data["devices"])})


def _new_enough(found: Probe, needed: str, driver_minimum: str | None) -> Probe:
    """`found`, not usable if its driver is older than the CUDA release that the wheel needs.

    Any driver of the same major release will do: that is CUDA's minor version compatibility.
    """
    if found.runtime is None or int(found.runtime.split(".")[0]) >= int(needed.split(".")[0]):
        return found
    newer = f" (driver {driver_minimum} or newer)" if driver_minimum else ""
    reason = (
        f"the driver{f' {found.driver}' if found.driver else ''} runs CUDA up to {found.runtime} "
        f"and the wheel needs CUDA {needed}{newer}"
    )
    return Probe(False, reason, found.devices, found.driver, found.runtime)


# What follows runs in the subprocess.


def _cpu(root: Path) -> Probe:
    """The processor: always there."""
    with suppress(OSError):
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
        if match:
            return Probe(True, "the processor", (Device(match[1].strip(), _memory(root)),))
    return Probe(True, "the processor", (Device(platform.processor() or platform.machine()),))


def _memory(root: Path) -> int | None:
    with suppress(OSError):
        match = re.search(r"^MemTotal:\s*(\d+) kB", (root / "proc/meminfo").read_text(), re.M)
        return int(match[1]) * 1024 if match else None
    return None


def _cuda(root: Path) -> Probe:
    """What the CUDA driver library says; it honours CUDA_VISIBLE_DEVICES itself."""
    cuda = _load(CUDA_LIBRARIES)
    if cuda is None:
        raise NoDeviceError("no NVIDIA driver (libcuda was not found)")
    code = cuda.cuInit(0)
    count = ctypes.c_int(0)
    if code == 0:
        code = cuda.cuDeviceGetCount(ctypes.byref(count))
    if code in (0, CUDA_ERROR_NO_DEVICE) and count.value == 0:
        raise NoDeviceError(_no_cuda_device())
    if code != 0:
        raise NoDeviceError(f"the NVIDIA driver failed: {_cuda_error(cuda, code)}{_closed(root)}")
    version = ctypes.c_int(0)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    devices = tuple(_cuda_device(cuda, ordinal) for ordinal in range(count.value))
    runtime = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return Probe(True, _visible(len(devices)), devices, _nvidia_release(), runtime)


def _load(names: tuple[str, ...]) -> ctypes.CDLL | None:
    for name in names:
        with suppress(OSError):
            return ctypes.CDLL(name)
    return None


def _no_cuda_device() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return "the NVIDIA driver is there and sees no device"
    return f"CUDA_VISIBLE_DEVICES={visible!r} leaves no device visible"


def _cuda_error(cuda: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    if cuda.cuGetErrorString(code, ctypes.byref(text)) == 0 and text.value:
        return f"{text.value.decode(errors='replace')} ({code})"
    return f"error {code}"


def _closed(root: Path) -> str:
    """What to add to an error where the device file is there and may not be opened."""
    control = root / "dev/nvidiactl"
    if control.exists() and not os.access(control, os.R_OK | os.W_OK):
        return "; /dev/nvidiactl may not be opened by this user"
    return ""


def _cuda_device(cuda: ctypes.CDLL, ordinal: int) -> Device:
    handle = ctypes.c_int(0)
    name = ctypes.create_string_buffer(256)
    memory = ctypes.c_size_t(0)
    cuda.cuDeviceGet(ctypes.byref(handle), ordinal)
    cuda.cuDeviceGetName(name, len(name), handle)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    return Device(name.value.decode(errors="replace"), memory.value or None)


def _nvidia_release() -> str | None:
    """The driver's release (580.65.06), which only its management library tells."""
    nvml = _load(NVML_LIBRARIES)
    if nvml is None or nvml.nvmlInit_v2() != 0:
        return None
    text = ctypes.create_string_buffer(96)
    known = nvml.nvmlSystemGetDriverVersion(text, len(text)) == 0
    nvml.nvmlShutdown()
    return text.value.decode(errors="replace") if known else None


def _rocm(root: Path) -> Probe:
    """What the kernel's KFD interface says; no ROCm library need be installed for that."""
    _open_kfd(root)
    nodes = sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*"))
    devices = tuple(device for node in nodes if (device := _rocm_device(node)) is not None)
    if not devices:
        raise NoDeviceError("/dev/kfd is there and its topology lists no GPU")
    for variable in ROCM_VISIBILITY:
        visible = os.environ.get(variable)
        if visible is not None and visible.strip() in ("", "-1"):
            raise NoDeviceError(f"{variable}={visible!r} leaves no device visible")
    return Probe(
        True, _visible(len(devices)), devices, _first_line(root, "sys/module/amdgpu/version")
    )


def _open_kfd(root: Path) -> None:
    """Open the device file for reading and writing, as the runtime will."""
    try:
        os.close(os.open(root / "dev/kfd", os.O_RDWR))
    except FileNotFoundError:
        if "microsoft" in (_first_line(root, "proc/sys/kernel/osrelease") or "").lower():
            raise NoDeviceError(
                "WSL2 has no /dev/kfd to ask; TOPOKV_DEVICE_ROCM=usable says that the GPU is there"
            ) from None
        raise NoDeviceError("no AMD GPU driver (/dev/kfd does not exist)") from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise NoDeviceError(
            f"/dev/kfd can't be opened: {why}; is this user in the groups render and video?"
        ) from None


def _rocm_device(node: Path) -> Device | None:
    """The GPU of a topology node; None for a CPU's node or one that this process may not read."""
    properties = _properties(node / "properties")
    if not properties.get("simd_count"):
        return None
    version = properties.get("gfx_target_version", 0)
    target = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    banks = (_properties(bank) for bank in node.glob("mem_banks/*/properties"))
    # Heap types 1 and 2 are the device's own memory, visible to the host and not.
    memory = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in (1, 2))
    return Device(f"AMD GPU {target}", memory or None)


def _properties(path: Path) -> dict[str, int]:
    """The `name number` lines of a sysfs file; empty where it may not be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _first_line(root: Path, path: str) -> str | None:
    with suppress(OSError):
        return (root / path).read_text(encoding="utf-8").strip() or None
    return None


def _visible(count: int) -> str:
    return f"{count} device{'' if count == 1 else 's'} visible"


ASKED = {"cpu": _cpu, "cuda": _cuda, "rocm": _rocm}


def _answer(name: str, root: Path) -> Mapping[str, Any]:
    try:
        return asdict(ASKED[name](root))
    except NoDeviceError as reason:
        return asdict(Probe(False, str(reason)))


if __name__ == "__main__":
    print(json.dumps(_answer(sys.argv[1], Path(sys.argv[2]))))
