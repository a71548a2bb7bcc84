"""The floating-point types that a cache may have."""

from __future__ import annotations

import torch
from torch import Tensor

from topokv.core import DTYPE_NAMES

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}


def dtype_name(dtype: torch.dtype) -> str:
    """The type's name in DTYPES."""
    return str(dtype).removeprefix("torch.")


def wide_dtype(keys: Tensor) -> torch.dtype:
    """The type that sums of keys are taken in and summaries are kept in."""
    return keys.dtype if keys.element_size() >= 4 else torch.float32
