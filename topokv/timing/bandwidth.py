"""Calls that read or copy as much as attention does, and nothing else: the memory's own speed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def prepare_read(*tensors: Tensor) -> Callable[[], object]:
    """A call that reads all of the tensors once.

    As the greatest of their bytes taken as int64, the fastest reader tried on a CPU: a sum, a
    matrix times a vector and a batched product took 1.2 to 2.4 times as long. What attention is
    held against should be what memory can do.
    """
    words = [_as_words(tensor) for tensor in tensors]

    def read() -> None:
        for part in words:
            part.amax()

    return read


def _as_words(tensor: Tensor) -> Tensor:
    """The tensor's bytes as int64, what does not fill one left out."""
    flat = tensor.reshape(-1).view(torch.uint8)
    whole = flat.narrow(0, 0, flat.numel() // 8 * 8)
    # A tensor of less than a word is read byte by byte.
    return whole.view(torch.int64) if whole.numel() else flat


def prepare_copy(source: Tensor, num_bytes: int) -> tuple[Callable[[], object], int]:
    """A call that copies the first `num_bytes` of `source`, and how many bytes it copies."""
    flat = source.reshape(-1)
    part = flat.narrow(0, 0, max(1, num_bytes // flat.element_size()))
    buffer = torch.empty_like(part)

    def copy() -> None:
        buffer.copy_(part)

    return copy, part.numel() * part.element_size()
