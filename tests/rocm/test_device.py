"""The checks of every device on a ROCm one; no graphs, which crash on some ROCm versions."""

import pytest
import torch
from device_checks import GpuChecks

from topokv.machine import backend_of, describe


class TestRocm(GpuChecks):
    @pytest.fixture
    def device(self):
        return torch.device("cuda", 0)  # torch's name for a ROCm device too

    def test_device_is_reported_as_rocm(self, device):
        assert backend_of(device) == "rocm"
        assert describe(device, "rocm")["runtime"] == torch.version.hip
