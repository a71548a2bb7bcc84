"""The one place that skips the ROCm tests, item by item, with the reason."""

from pathlib import Path

import pytest
import torch
from device_checks import skip_items

from topokv.machine import device_probe as probe


def why_not() -> str | None:
    """The reason why no ROCm device can be used here; torch calls both kinds of GPU "cuda"."""
    if torch.version.hip is None:
        return f"torch {torch.__version__} is not a ROCm build"
    if not torch.cuda.is_available():
        return f"torch sees no ROCm device: {probe.probe('rocm').reason}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_items(items, Path(__file__).parent, why_not())
