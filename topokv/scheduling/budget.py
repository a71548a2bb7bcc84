"""How a budget of tokens is divided: sinks, local window and what the scores choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topokv.core import check_counts, check_sizes


@dataclass(frozen=True, slots=True)
class Budget:
    """How a budget of tokens is divided.

    The first `sink_tokens` tokens and those from `first_local_token` on are attended whatever the
    scores; `scored_tokens` more come from blocks `first_scored_block` to `end_scored_block` - 1.
    """

    kv_len: int
    block_size: int
    sink_tokens: int
    first_local_token: int
    scored_tokens: int
    first_scored_block: int
    end_scored_block: int

    @property
    def selected_tokens(self) -> int:
        return self.sink_tokens + self.scored_tokens + self.kv_len - self.first_local_token

    @property
    def num_scored_blocks(self) -> int:
        """Blocks that the scores choose; at 0 every selector attends the same tokens."""
        return -(-self.scored_tokens // self.block_size)


def token_budget(
    *, kv_len: int, block_size: int, selected_tokens: int, sink_blocks: int, local_blocks: int
) -> Budget:
    """How `selected_tokens` of `kv_len` tokens are divided into sinks, locals and scored blocks.

    With m = ceil(selected_tokens / block_size): min(sink_blocks, m - 1) sinks, then
    min(local_blocks, m - sinks) locals but at least one, and one more where the final block is
    partial, so that a partial block never costs recent context. Filled in the order locals newest
    first, sinks from 0 up, scored blocks.

    Raises ValueError for sizes below 1, negative counts and a budget above `kv_len`.
    """
    check_sizes(kv_len=kv_len, block_size=block_size, selected_tokens=selected_tokens)
    check_counts(sink_blocks=sink_blocks, local_blocks=local_blocks)
    if selected_tokens > kv_len:
        raise ValueError(f"selected_tokens {selected_tokens} exceeds kv_len {kv_len}")
    slots = -(-selected_tokens // block_size)
    sinks = min(sink_blocks, slots - 1)
    local = max(1, min(local_blocks, slots - sinks)) + (1 if kv_len % block_size else 0)
    first_local = max(0, -(-kv_len // block_size) - local)
    sinks = min(sinks, first_local)
    local_tokens = min(selected_tokens, kv_len - first_local * block_size)
    sink_tokens = min(selected_tokens - local_tokens, sinks * block_size)
    return Budget(
        kv_len=kv_len,
        block_size=block_size,
        sink_tokens=sink_tokens,
        first_local_token=kv_len - local_tokens,
        scored_tokens=selected_tokens - local_tokens - sink_tokens,
        first_scored_block=sinks,
        end_scored_block=first_local,
    )


def quotas(shares: Sequence[float], total: int) -> list[int]:
    """`total` divided as `shares`, which add up to 1; leftovers go to the largest remainders."""
    quotas = [int(total * part + 1e-9) for part in shares]
    remainders = [quota - total * part for quota, part in zip(quotas, shares, strict=True)]
    for index in sorted(range(len(shares)), key=remainders.__getitem__)[: total - sum(quotas)]:
        quotas[index] += 1
    return quotas
