"""Calls that read or copy as much as attention does, and nothing else: the memory's own speed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# A row of the matrix that a read is laid out as: long enough that its one output is nothing.
_WIDTH = 4096


def prepare_read(*tensors: Tensor) -> Callable[[], object]:
    """A call that reads all of the tensors once.

    As a matrix times a vector of zeros, which was the fastest reader tried on a CPU (sums took
    three times as long): what attention is held against should be what memory can do.
    """
    rows = [_as_rows(tensor) for tensor in tensors]
    vector = torch.zeros(rows[0].shape[1], device=rows[0].device)
    outputs = [torch.empty(part.shape[0], device=part.device) for part in rows]

    def read() -> None:
        for part, output in zip(rows, outputs, strict=True):
            torch.mv(part, vector, out=output)

    return read


def _as_rows(tensor: Tensor) -> Tensor:
    """The tensor's bytes as float32 `[rows, width]`, what does not fill a row left out."""
    flat = tensor.reshape(-1).view(torch.uint8)
    words = flat.narrow(0, 0, flat.numel() // 4 * 4).view(torch.float32)
    width = min(_WIDTH, max(1, words.numel()))
    return words.narrow(0, 0, words.numel() // width * width).view(-1, width)


def prepare_copy(source: Tensor, num_bytes: int) -> tuple[Callable[[], object], int]:
    """A call that copies the first `num_bytes` of `source`, and how many bytes it copies."""
    flat = source.reshape(-1)
    part = flat.narrow(0, 0, max(1, num_bytes // flat.element_size()))
    buffer = torch.empty_like(part)

    def copy() -> None:
        buffer.copy_(part)

    return copy, part.numel() * part.element_size()
