"""The ways to attend a schedule, by name: to add one, write its file and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from topokv.attention.csr import CsrDecode
from topokv.attention.dense import Attend
from topokv.attention.flex import FlexDecode
from topokv.attention.runs import RunDecode
from topokv.attention.windows import BlockDecode, GatherDecode
from topokv.core import choose
from topokv.scheduling import CandidateSchedule
from topokv.tensors import KVCache, check_query


class Decode(Protocol):
    """A way to attend, with its buffers: `load` a step, then call it; serve all steps by one."""

    def load(self, q: Tensor, cache: KVCache, schedule: CandidateSchedule) -> Attend:
        """A call that attends the schedule, `[batch, num_q_heads, 1, head_dim]`."""


@dataclass(frozen=True, slots=True)
class AttentionPath:
    """A named way to attend a schedule; `make` gives a Decode to keep for many steps."""

    name: str
    make: Callable[[], Decode]

    def prepare(self, q: Tensor, cache: KVCache, schedule: CandidateSchedule) -> Attend:
        """A call that gathers and attends into buffers made here, once.

        Raises ValueError or TypeError for a query that does not fit the cache.
        """
        check_query(q, cache.k)
        return self.make().load(q, cache, schedule)


ATTENTION_PATHS: tuple[AttentionPath, ...] = (
    AttentionPath("gather", GatherDecode),
    AttentionPath("blocks", BlockDecode),
    AttentionPath("runs", RunDecode),
    AttentionPath("csr", CsrDecode),
    AttentionPath("flex", FlexDecode),
)


def attention_path_named(name: str) -> AttentionPath:
    """The path of that name; ValueError lists the valid ones."""
    return choose("attention", name, ATTENTION_PATHS)
