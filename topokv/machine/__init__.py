"""What is here: the CPU, the devices that drivers report, the build of torch, the fingerprint.

torch is loaded by the functions that ask it, never before.
"""

from topokv.machine.cpu import cache_bytes, physical_cores
from topokv.machine.device_probe import Device, Probe, probe
from topokv.machine.fingerprint import attempt, backend_of, clock_share, describe
from topokv.machine.modes import GRAPHS, Modes, choose_modes
from topokv.machine.wheels import Backend, Build, backends, index_url, installed_build

__all__ = [
    "GRAPHS",
    "Backend",
    "Build",
    "Device",
    "Modes",
    "Probe",
    "attempt",
    "backend_of",
    "backends",
    "cache_bytes",
    "choose_modes",
    "clock_share",
    "describe",
    "index_url",
    "installed_build",
    "physical_cores",
    "probe",
]
