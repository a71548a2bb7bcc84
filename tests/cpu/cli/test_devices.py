"""`topokv devices`: a paragraph for each backend, within 80 columns."""

import pytest

from topokv.cli import main
from topokv.machine import wheels
from topokv.machine.device_probe import Device, Probe

GPU = Device("NVIDIA H200", 150_754_820_096)


@pytest.fixture
def found(monkeypatch):
    """What the probes are to find."""
    answers = {
        "cpu": Probe(True, "the processor", (Device("A processor", 2**35),)),
        "cuda": Probe(True, "3 devices visible", (GPU, Device("L4"), GPU), "580.65.06", "13.0"),
        "rocm": Probe(False, "/dev/kfd can't be opened: " + "permission denied, " * 9),
    }
    monkeypatch.setattr("topokv.cli.devices.probe", lambda name, **_: answers[name])
    for backend in wheels.backends().values():
        monkeypatch.delenv(backend.index_variable, raising=False)


def test_each_backend_says_what_is_there_and_what_it_would_get(found, capsys):
    assert main(["devices"]) == 0
    cpu, cuda, rocm = capsys.readouterr().out.split("\n\n")
    assert cuda == (
        "cuda    usable: 3 devices visible\n"
        "        device  2 x NVIDIA H200, 140.4 GiB\n"
        "        device  L4\n"
        "        driver  580.65.06, runs up to 13.0\n"
        "        wheel   torch 2.13.0+cu130\n"
        "        from    https://download.pytorch.org/whl/cu130"
    )
    assert cpu.startswith("cpu     usable: the processor\n")
    assert rocm.startswith("rocm    not usable: /dev/kfd can't be opened")


def test_no_line_is_longer_than_a_terminal(found, capsys):
    main(["devices"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_an_index_of_ones_own_and_another_torch_are_shown(found, capsys, monkeypatch):
    monkeypatch.setenv("TOPOKV_INDEX_ROCM", "")
    assert main(["devices", "--torch-version", "2.12.0"]) == 0
    shown = capsys.readouterr().out
    assert "wheel   torch 2.12.0+rocm7.2\n        from    pip's own configuration\n" in shown


def test_a_torch_version_that_is_none_is_refused(capsys):
    assert main(["devices", "--torch-version", "new"]) == 2
    assert capsys.readouterr().err == (
        "topokv devices: torch version must look like 2.13.0, or 2.13.0+cu126 to choose "
        "the build too, got 'new'\n"
    )
