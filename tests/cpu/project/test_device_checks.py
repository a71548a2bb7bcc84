"""The checks of every device, on the CPU: they run on every machine, so that they don't rot."""

import pytest
import torch
from device_checks import DeviceChecks


class TestCpu(DeviceChecks):
    @pytest.fixture
    def device(self):
        return torch.device("cpu")
