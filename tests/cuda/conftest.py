"""The one place that skips the CUDA tests, item by item, with the reason."""

from pathlib import Path

import pytest
import torch
from device_checks import skip_items

from topokv.machine import device_probe as probe


def why_not() -> str | None:
    """The reason why no CUDA device can be used here; torch calls both kinds of GPU "cuda"."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is not a CUDA build"
    if not torch.cuda.is_available():
        return f"torch sees no CUDA device: {probe.probe('cuda').reason}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_items(items, Path(__file__).parent, why_not())
