"""The probes, against a driver library compiled here and small trees of /dev, /proc and /sys."""

import os
import shutil
import subprocess
import sys

import pytest

from topokv.machine import device_probe as probe
from topokv.machine.device_probe import Device

# A driver that does what FAKE_CUDA says, and counts devices as the real one does.
FAKE_CUDA = """
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int says(const char *word) {
    const char *told = getenv("FAKE_CUDA");
    return told && strstr(told, word);
}
int cuInit(unsigned flags) {
    if (says("hang")) sleep(60);
    if (says("crash")) abort();
    return says("broken") ? 999 : 0;
}
int cuDeviceGetCount(int *count) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int hidden = visible && (!*visible || !strcmp(visible, "-1"));
    *count = hidden || says("empty") ? 0 : 2;
    return *count ? 0 : 100;
}
int cuDriverGetVersion(int *version) { *version = says("old") ? 12040 : 13000; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, "Fake GPU", length);
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 1ul << 33; return 0; }
int cuGetErrorString(int code, const char **text) { *text = "unknown error"; return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    strncpy(text, says("old") ? "550.54.14" : "580.65.06", length);
    return 0;
}
"""
FAKE_GPU = Device("Fake GPU", 2**33)
VISIBILITY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@pytest.fixture(autouse=True)
def nothing_hidden_or_forced(monkeypatch):
    for name in (*VISIBILITY, "TOPOKV_DEVICE_CUDA", "TOPOKV_DEVICE_ROCM"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def driver_folder(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("the fake driver needs Linux and a C compiler")
    folder = tmp_path_factory.mktemp("driver")
    source = folder / "cuda.c"
    source.write_text(FAKE_CUDA, encoding="utf-8")
    library = folder / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", library, source], check=True)
    (folder / "libnvidia-ml.so.1").symlink_to(library)
    return folder


@pytest.fixture
def driver(driver_folder, monkeypatch):
    """Loads the fake driver in a probe's subprocess, and tells it what to do."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver_folder))
    return lambda told: monkeypatch.setenv("FAKE_CUDA", told)


@pytest.fixture
def kfd(tmp_path):
    """A tree with one CPU and two GPUs, as the kernel's KFD interface shows them."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for number, (simds, target) in enumerate([(0, 0), (1216, 90402), (1216, 90402)]):
        bank = nodes / str(number) / "mem_banks/0"
        bank.mkdir(parents=True)
        (nodes / str(number) / "properties").write_text(
            f"cpu_cores_count 8\nsimd_count {simds}\ngfx_target_version {target}\n"
        )
        (bank / "properties").write_text(f"heap_type 1\nsize_in_bytes {2**36}\n")
    version = tmp_path / "sys/module/amdgpu/version"
    version.parent.mkdir(parents=True)
    version.write_text("6.14.14\n")
    return tmp_path


def test_cuda_devices_are_named_and_counted(driver):
    driver("")
    found = probe.probe("cuda", runtime_needed="13.0", driver_minimum="580")
    assert found.usable
    assert found.reason == "2 devices visible"
    assert found.devices == (FAKE_GPU, FAKE_GPU)
    assert (found.driver, found.runtime) == ("580.65.06", "13.0")


def test_cuda_driver_too_old_for_the_wheel(driver):
    driver("old")
    found = probe.probe("cuda", runtime_needed="13.0", driver_minimum="580")
    assert not found.usable
    assert found.reason == (
        "the driver 550.54.14 runs CUDA up to 12.4 and the wheel needs CUDA 13.0 "
        "(driver 580 or newer)"
    )
    assert found.devices == (FAKE_GPU, FAKE_GPU)


def test_cuda_driver_of_the_same_major_release_is_new_enough(driver):
    driver("old")
    assert probe.probe("cuda", runtime_needed="12.6").usable


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("empty", "the NVIDIA driver is there and sees no device"),
        ("broken", "the NVIDIA driver failed: unknown error (999)"),
        ("crash", "the driver ended the probe with exit code -6"),
    ],
)
def test_cuda_driver_without_a_usable_device(driver, told, reason):
    driver(told)
    assert probe.probe("cuda") == probe.Probe(False, reason)


def test_cuda_driver_that_hangs_is_given_up(driver):
    driver("hang")
    assert probe.probe("cuda", timeout=0.5) == probe.Probe(
        False, "the driver did not answer within 0.5 s"
    )


@pytest.mark.parametrize("visible", ["", "-1"])
def test_cuda_devices_hidden_by_the_environment(driver, monkeypatch, visible):
    driver("")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert probe.probe("cuda").reason == (
        f"CUDA_VISIBLE_DEVICES={visible!r} leaves no device visible"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="a library is hidden by Linux's search path")
def test_cuda_driver_absent(tmp_path, monkeypatch):
    # A file that is no library ends the loader's search, even where a real driver is installed.
    (tmp_path / "libcuda.so.1").write_text("not a library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert probe.probe("cuda") == probe.Probe(False, "no NVIDIA driver (libcuda was not found)")


def test_cuda_device_file_that_may_not_be_opened_is_told(driver, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (tmp_path / "dev").mkdir()
    assert probe._closed(tmp_path) == ""
    (tmp_path / "dev/nvidiactl").touch()
    assert probe._closed(tmp_path) == "; /dev/nvidiactl may not be opened by this user"


def test_rocm_devices_are_named_and_counted(kfd):
    gpu = Device("AMD GPU gfx942", 2**36)
    assert probe.probe("rocm", root=kfd) == probe.Probe(
        True, "2 devices visible", (gpu, gpu), "6.14.14"
    )


def test_rocm_driver_absent(tmp_path):
    assert probe.probe("rocm", root=tmp_path) == probe.Probe(
        False, "no AMD GPU driver (/dev/kfd does not exist)"
    )


def test_rocm_under_wsl2_names_the_override(tmp_path):
    release = tmp_path / "proc/sys/kernel/osrelease"
    release.parent.mkdir(parents=True)
    release.write_text("6.6.87.2-microsoft-standard-WSL2\n")
    assert probe.probe("rocm", root=tmp_path).reason == (
        "WSL2 has no /dev/kfd to ask; TOPOKV_DEVICE_ROCM=usable says that the GPU is there"
    )


def test_rocm_device_file_that_may_not_be_opened(kfd, monkeypatch):
    def refuse(path, flags):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)  # root may open anything
    with pytest.raises(probe.NoDeviceError) as raised:
        probe._rocm(kfd)
    assert str(raised.value) == (
        "/dev/kfd can't be opened: permission denied; is this user in the groups render and video?"
    )


def test_rocm_driver_without_a_gpu(kfd):
    for node in ("1", "2"):
        shutil.rmtree(kfd / "sys/class/kfd/kfd/topology/nodes" / node)
    assert probe.probe("rocm", root=kfd).reason == (
        "/dev/kfd is there and its topology lists no GPU"
    )


@pytest.mark.parametrize("variable", VISIBILITY)
@pytest.mark.parametrize("visible", ["", "-1"])
def test_rocm_devices_hidden_by_the_environment(kfd, monkeypatch, variable, visible):
    monkeypatch.setenv(variable, visible)
    with pytest.raises(probe.NoDeviceError) as raised:
        probe._rocm(kfd)
    assert str(raised.value) == f"{variable}={visible!r} leaves no device visible"


def test_the_processor_is_always_usable():
    found = probe.probe("cpu")
    assert found.usable
    assert len(found.devices) == 1


@pytest.mark.parametrize(("answer", "usable"), [("usable", True), ("absent", False)])
def test_a_variable_answers_in_place_of_the_driver(monkeypatch, answer, usable):
    monkeypatch.setenv("TOPOKV_DEVICE_ROCM", answer)
    assert probe.probe("rocm") == probe.Probe(usable, f"TOPOKV_DEVICE_ROCM={answer}")


def test_a_variable_with_another_answer_is_refused(monkeypatch):
    monkeypatch.setenv("TOPOKV_DEVICE_CUDA", "yes")
    with pytest.raises(ValueError) as raised:
        probe.probe("cuda")
    assert str(raised.value) == "TOPOKV_DEVICE_CUDA must be 'usable' or 'absent', got 'yes'"


def test_an_unknown_probe_is_refused():
    with pytest.raises(ValueError) as raised:
        probe.probe("tpu")
    assert str(raised.value) == "unknown probe 'tpu'; expected one of 'cpu', 'cuda', 'rocm'"
