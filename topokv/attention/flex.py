"""Attention where the keys lie, by FlexAttention: a kernel, compiled here, that walks the blocks.

Source: torch.nn.attention.flex_attention; https://arxiv.org/abs/2412.05496
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache as once
from types import FunctionType
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from topokv.scheduling import CandidateSchedule
from topokv.tensors import KVCache, dtype_name, group_queries

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import FlexKernelOptions

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Triton multiplies no matrix of fewer rows or columns than this.
_LEAST_TILE = 16
# As many keys as PyTorch's own settings for short queries take at once.
_MOST_KEYS = 64

# `attend` of one layout.
Kernel: TypeAlias = Callable[..., Tensor]


class FlexDecode:
    """Attend the schedule's blocks in place, by a kernel compiled for sizes, type and device.

    The first call compiles, which takes seconds; later ones of the process do not, however long
    the cache has grown and whichever blocks are attended. `load` raises ValueError for what
    FlexAttention has no kernel for, the call where none could be compiled.
    """

    def __init__(self) -> None:
        self._indices = torch.empty(0, dtype=torch.int32)

    def load(self, q: Tensor, cache: KVCache, schedule: CandidateSchedule) -> FlexDecode:
        budget = schedule.budget
        layout = Layout.of(q, cache, schedule)
        masked, whole = block_lists(schedule)
        if not layout.tells_whole_blocks:
            masked, whole = torch.cat((masked, whole), dim=-1), whole[..., :0]
        self._list(masked, whole, -(-budget.kv_len // budget.block_size))
        counts = [_count(part) for part in (masked, whole)]
        # Kernels go by the first list's strides for both, so that both are of one tensor.
        self._tables = (counts, self._indices.unbind(), hole(schedule))
        self._inputs = (group_queries(q, layout.heads), cache.k, cache.v)
        self._layout = layout
        self._shape = q.shape
        return self

    def __call__(self) -> Tensor:
        return compiled(self._layout)(*self._inputs, *self._tables).reshape(self._shape)

    def _list(self, masked: Tensor, whole: Tensor, num_blocks: int) -> None:
        """Write both lists into `[2, batch, groups, 1, width]`, made anew where that is too small.

        FlexAttention wants room for every block of the cache, whatever is listed: the width
        doubles, so that it is seldom made, and only what is listed is written.
        """
        old, shape = self._indices, (2, *masked.shape[:2], 1)
        if (old.shape[:-1], old.device) != (shape, masked.device) or old.shape[-1] < num_blocks:
            width = max(8, _power_of_two(num_blocks))
            self._indices = masked.new_zeros((*shape, width), dtype=torch.int32)
        for row, blocks in zip(self._indices, (masked, whole), strict=True):
            row[:, :, 0, : blocks.shape[-1]] = blocks


@dataclass(frozen=True, slots=True)
class Layout:
    """What one kernel serves: everything but the cache's length and where its tensors lie."""

    device: torch.device
    dtype: torch.dtype
    batch: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    groups: int
    block_size: int

    @staticmethod
    def of(q: Tensor, cache: KVCache, schedule: CandidateSchedule) -> Layout:
        """The layout of a step; ValueError for one that FlexAttention has no kernel for."""
        layout = Layout(
            device=q.device,
            dtype=q.dtype,
            batch=cache.batch,
            num_q_heads=q.shape[1],
            num_kv_heads=cache.num_kv_heads,
            head_dim=cache.head_dim,
            groups=schedule.scored_blocks.shape[1],
            block_size=schedule.budget.block_size,
        )
        layout._check()
        return layout

    def _check(self) -> None:
        if self.dtype not in _DTYPES:
            raise ValueError(
                "attention 'flex' takes float16, bfloat16 or float32, "
                f"got {dtype_name(self.dtype)}; use another --attention"
            )
        if self.on_cpu:
            return
        if self.head_dim < _LEAST_TILE:
            raise ValueError(
                f"attention 'flex' takes a head_dim of at least {_LEAST_TILE} on a GPU, "
                f"got {self.head_dim}; use another --attention"
            )
        if self.block_size % _LEAST_TILE:
            raise ValueError(
                f"attention 'flex' takes a block_size that is a multiple of {_LEAST_TILE} on a "
                f"GPU, got {self.block_size}; change --block-size or use another --attention"
            )

    @property
    def on_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def heads(self) -> int:
        """Heads that the kernel sees: query heads of one KV head and one schedule are its rows."""
        return max(self.num_kv_heads, self.groups)

    @property
    def tells_whole_blocks(self) -> bool:
        """Whether blocks attended whole are listed apart, to be attended without a mask.

        By the source of PyTorch 2.13, the GPU's kernel for short queries divides such a list among
        its programs by the cache's length, so that most have nothing to do; masked blocks it
        divides evenly, and this mask is two comparisons. Not measured.
        """
        return self.on_cpu

    @property
    def rows(self) -> int:
        """Query rows of a tile: room for all of a head's."""
        return max(_LEAST_TILE, _power_of_two(self.num_q_heads // self.heads))

    @property
    def columns(self) -> int:
        """Keys of a tile: a power of two that divides the blocks."""
        return min(_MOST_KEYS, self.block_size & -self.block_size)


def block_lists(schedule: CandidateSchedule) -> tuple[Tensor, Tensor]:
    """The blocks attended in part and those attended whole, both `[batch, groups, n]`.

    In part: a scored block that is cut, sinks or locals that end or begin within a block, and the
    cache's last block where it is partial.
    """
    budget, scored = schedule.budget, schedule.scored_blocks
    size, last = budget.block_size, budget.kv_len // budget.block_size
    sinks, local = budget.sink_tokens, budget.first_local_token
    cut = budget.scored_tokens // size
    in_part = (
        range(sinks // size, -(-sinks // size)),
        range(local // size, min(-(-local // size), last)),
        range(last, -(-budget.kv_len // size)),
    )
    whole = (range(sinks // size), range(-(-local // size), last))
    return _with_all(scored[..., cut:], in_part), _with_all(scored[..., :cut], whole)


def _with_all(scored: Tensor, others: tuple[range, ...]) -> Tensor:
    """`scored [batch, groups, n]` followed by blocks that every schedule attends."""
    of_all = [torch.arange(o.start, o.stop, device=scored.device) for o in others if o]
    if not of_all:
        return scored
    return torch.cat((scored, torch.cat(of_all).expand(*scored.shape[:2], -1)), dim=-1)


def hole(schedule: CandidateSchedule) -> tuple[Tensor, Tensor]:
    """What the listed blocks hold in excess: its first token and its end, `[batch, groups]` each.

    One run of tokens at most: a scored block is cut where sinks and locals are whole, sinks end
    within a block where nothing is scored, and locals begin within one where there are no sinks.
    """
    budget, scored = schedule.budget, schedule.scored_blocks
    size, sinks, local = budget.block_size, budget.sink_tokens, budget.first_local_token
    spare = scored.shape[-1] * size - budget.scored_tokens
    if spare:
        end = (scored[..., -1] + 1) * size
        return (end - spare).int(), end.int()
    bounds = (sinks, sinks + -sinks % size) if sinks % size else (local - local % size, local)
    first, end = (scored.new_full(scored.shape[:2], t, dtype=torch.int32) for t in bounds)
    return first, end


def _count(blocks: Tensor) -> Tensor:
    """How many blocks each schedule lists, `[batch, groups, 1]`."""
    return blocks.new_full((*blocks.shape[:2], 1), blocks.shape[-1], dtype=torch.int32)


def _power_of_two(number: int) -> int:
    """The least power of two that is no less than `number`."""
    return 1 << (number - 1).bit_length()


@once
def compiled(layout: Layout) -> Kernel:
    """`attend` of a layout as a compiled kernel, one for each layout in a process.

    What its first call costs, and the ValueError where it can't be compiled, are that call's.
    """
    # These take a second to import, which only this way to attend needs.
    from torch._dynamo import maybe_mark_dynamic
    from torch._dynamo.exc import TorchDynamoException

    # PyTorch counts by code how often it compiles, and refuses the ninth time; by name it knows
    # which sizes have varied, and takes those for dynamic. Each layout has its own of both.
    name = f"attend_{compiled.cache_info().currsize}"
    own = FunctionType(attend.__code__.replace(co_name=name), attend.__globals__)
    kernel = torch.compile(own, fullgraph=True)

    def call(q: Tensor, k: Tensor, v: Tensor, *tables: Sequence[Tensor]) -> Tensor:
        _, (masked, whole), _ = tables
        for tensor, size in ((k, 2), (v, 2), (masked, 3), (whole, 3)):
            maybe_mark_dynamic(tensor, size)
        try:
            with torch.no_grad():
                output: Tensor = kernel(layout, q, k, v, *tables)
        except TorchDynamoException as error:
            raise ValueError(why_not_compiled(str(error))) from error
        return output

    return call


def why_not_compiled(text: str) -> str:
    """One line that says what is missing, from all that the compiler said."""
    for sign, tool in (
        ("InvalidCxxCompiler", "a C++ compiler (g++ or CXX)"),
        ("TritonMissing", "Triton"),
    ):
        if sign in text:
            return f"attention 'flex' needs {tool}, and none was found; use another --attention"
    lines = [line.strip() for line in text.splitlines()]
    telling = [line for line in lines if line and not line.startswith("backend=")]
    reason = telling[0][:200] if telling else "torch gave no reason"
    return f"attention 'flex' could not be compiled: {reason}; use another --attention"


def attend(
    layout: Layout,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    counts: Sequence[Tensor],
    indices: Sequence[Tensor],
    hole: Sequence[Tensor],
) -> Tensor:
    """Attention over the listed blocks, `[batch, heads, rows, head_dim]`: what is compiled.

    `counts [batch, groups, 1]` and `indices [batch, groups, 1, width]` are of the blocks attended
    in part, then of those attended whole; `hole` is as `hole` returns it.
    """
    heads_each = layout.heads // layout.groups
    first, end = hole

    def there(request: Tensor, head: Tensor, row: Tensor, token: Tensor) -> Tensor:
        place = request, head // heads_each
        return (token < first[place]) | (token >= end[place])

    apart = layout.tells_whole_blocks
    mask = BlockMask.from_kv_blocks(
        counts[0],
        indices[0],
        counts[1] if apart else None,
        indices[1] if apart else None,
        BLOCK_SIZE=(layout.rows, layout.block_size),
        mask_mod=there,
        seq_lengths=(q.shape[2], k.shape[2]),
        compute_q_blocks=False,
    )
    tiles: FlexKernelOptions = {"BLOCK_M": layout.rows, "BLOCK_N": layout.columns}
    return flex_attention(
        q,
        k,
        v,
        block_mask=mask,
        enable_gqa=layout.heads != layout.num_kv_heads,
        kernel_options=None if layout.on_cpu else tiles,
    )
