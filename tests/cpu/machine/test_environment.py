"""The fingerprint: what is found out, what stays unknown, and what makes machines differ."""

import json
import platform
import re
import socket
import sys
import types
from pathlib import Path

import pytest
import torch

from topokv.machine import backend_of, clock_share, describe
from topokv.machine import cpu as machine
from topokv.machine import fingerprint as environment
from topokv.machine.fingerprint import fingerprint

CPU = torch.device("cpu")
FIELDS = {
    "project",
    "commit",
    "dirty",
    "torch",
    "torch_build",
    "torch_cuda",
    "torch_hip",
    "torch_config",
    "python",
    "os",
    "machine",
    "cpu_model",
    "cpu_capability",
    "physical_cores",
    "threads",
    "affinity",
    "memory_bytes",
    "l2_bytes",
    "l3_bytes",
    "device",
    "device_count",
    "driver",
    "runtime",
    "device_memory_bytes",
    "device_l2_bytes",
    "clock_mhz",
    "default_clock_mhz",
    "tf32",
    "fingerprint",
}


@pytest.fixture(scope="module")
def here():
    return describe(CPU, "cpu")


def test_every_field_is_there_and_is_plain_json(here):
    assert set(here) == FIELDS
    assert json.loads(json.dumps(here, allow_nan=False)) == here


def test_the_build_and_the_threads_are_those_of_torch(here):
    assert here["torch"] == torch.__version__.partition("+")[0]
    assert here["threads"] == torch.get_num_threads()
    assert "PyTorch built with" in here["torch_config"]


def test_nothing_names_the_host_the_user_or_a_folder(here):
    text = json.dumps(here)
    names = [socket.gethostname(), str(Path.home()), str(Path(machine.__file__).parents[2])]
    assert [name for name in names if len(name) > 3 and name in text] == []
    assert re.search(r'[ "=]/\w+/', text) is None


def test_the_fingerprint_is_the_machines_and_the_builds_not_the_moments(here):
    assert re.fullmatch(r"[0-9a-f]{12}", here["fingerprint"])
    assert fingerprint(here) == here["fingerprint"]
    for name in ("commit", "dirty", "project", "clock_mhz", "memory_bytes"):
        assert fingerprint(here | {name: "other"}) == here["fingerprint"]
    for name in ("device", "torch", "torch_build", "threads", "cpu_model", "driver"):
        assert fingerprint(here | {name: "other"}) != here["fingerprint"]


def test_a_copy_outside_a_checkout_has_no_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "PACKAGE", tmp_path / "topokv")
    found = describe(CPU, "cpu")
    assert (found["commit"], found["dirty"]) == (None, None)


def test_without_optional_packages_and_system_files_fields_are_null(monkeypatch, tmp_path):
    for name in ("psutil", "cpuinfo", "pynvml"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(machine, "_CPUS", tmp_path)
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.delattr("os.sysconf", raising=False)
    found = describe(CPU, "cpu")
    unknown = ("cpu_model", "physical_cores", "l2_bytes", "l3_bytes", "affinity", "memory_bytes")
    assert [found[name] for name in unknown] == [None] * 6
    assert found["device"] == platform.machine()


def test_a_broken_optional_package_counts_as_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", types.ModuleType("psutil"))
    monkeypatch.setattr(machine, "_CPUS", Path("/nonexistent"))
    monkeypatch.setattr(sys, "platform", "win32")
    assert machine.physical_cores() is None


def cpu_folder(root, number, siblings, caches):
    folder = root / f"cpu{number}"
    (folder / "topology").mkdir(parents=True)
    (folder / "topology/thread_siblings_list").write_text(siblings + "\n")
    for index, (level, kind, size, shared) in enumerate(caches):
        cache = folder / f"cache/index{index}"
        cache.mkdir(parents=True)
        for name, value in zip(
            ("level", "type", "size", "shared_cpu_list"), (level, kind, size, shared), strict=True
        ):
            (cache / name).write_text(value + "\n")


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS is asked through sysctl")
def test_cores_and_caches_are_counted_once(monkeypatch, tmp_path):
    """Four hardware threads on two cores: a 1 MiB L2 each, and 32 MiB of L3 between them."""
    for number, core in ((0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3")):
        caches = [
            ("1", "Data", "32K", core),
            ("1", "Instruction", "32K", core),
            ("2", "Unified", "1024K", core),
            ("3", "Unified", "32M", "0-3"),
        ]
        cpu_folder(tmp_path, number, core, caches)
    monkeypatch.setattr(machine, "_CPUS", tmp_path)
    assert machine.physical_cores() == 2
    assert [machine.cache_bytes(level) for level in (1, 2, 3, 4)] == [
        2 * 32 << 10,
        2 << 20,
        32 << 20,
        None,
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("512K", 512 << 10), ("32M", 32 << 20), ("64", 64), ("", None), ("lots", None), ("xK", None)],
)
def test_sizes_are_read_with_their_units(text, expected):
    assert machine.parse_size(text) == expected


def test_macos_answers_through_sysctl(monkeypatch):
    answers = {"machdep.cpu.brand_string": "Apple M9", "hw.physicalcpu": "8", "hw.l2cachesize": "0"}
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(machine, "_sysctl", answers.get)
    assert (machine.cpu_model(), machine.physical_cores()) == ("Apple M9", 8)
    assert machine.cache_bytes(2) is machine.cache_bytes(3) is None


def test_backends_are_told_apart_by_the_build(monkeypatch):
    assert backend_of(CPU) == "cpu"
    monkeypatch.setattr(torch.version, "hip", None)
    assert backend_of(torch.device("cuda")) == "cuda"
    monkeypatch.setattr(torch.version, "hip", "7.2")
    assert backend_of(torch.device("cuda")) == "rocm"


def test_a_gpus_clock_is_a_share_of_its_default(monkeypatch):
    assert clock_share(CPU) is None
    clocks = {"clock_mhz": 900, "default_clock_mhz": 1200}
    monkeypatch.setattr(environment, "_clocks", lambda device: clocks)
    assert clock_share(torch.device("cuda")) == 0.75
    monkeypatch.setattr(environment, "_clocks", lambda device: {})
    assert clock_share(torch.device("cuda")) is None
