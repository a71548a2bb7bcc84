"""Selection end to end: a K cache and a query in, the tokens to attend out."""

from __future__ import annotations

from torch import Tensor

from topokv.core import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_LOCAL_BLOCKS,
    DEFAULT_SELECTOR,
    DEFAULT_SINK_BLOCKS,
)
from topokv.scheduling.block_summary import BlockSummary, promote_keys
from topokv.scheduling.budget import token_budget
from topokv.scheduling.mixture import Mixture, mixture_of
from topokv.scheduling.schedule import CandidateSchedule, schedule_tokens
from topokv.scheduling.selectors import Selector
from topokv.tensors import check_query, check_tensor


class Scheduler:
    """The schedule of a growing cache: it keeps each block's summary, not the keys.

    `k` is `[batch, num_kv_heads, kv_len, head_dim]`, what the cache holds at the start. Then for
    each decode step `append(k_token)` and `schedule(q)`; the choice equals that of a scheduler
    built from all the keys at once, but for selectors that judge by statistics of the keys at the
    start (`Selector.from_prompt`). While the cache is shorter than the budget, all of it is
    selected.

    Raises ValueError for an unknown selector or sharing and for counts below their least value.
    """

    def __init__(
        self,
        k: Tensor,
        selected_tokens: int,
        *,
        selector: str | Selector | Mixture = DEFAULT_SELECTOR,
        block_size: int = DEFAULT_BLOCK_SIZE,
        sink_blocks: int = DEFAULT_SINK_BLOCKS,
        local_blocks: int = DEFAULT_LOCAL_BLOCKS,
        sharing: str | None = None,
        seed: int = 0,
    ) -> None:
        check_tensor("k", k, "[batch, num_kv_heads, kv_len, head_dim]")
        self.mixture = mixture_of(selector)
        self.sharing = sharing or self.mixture.sharing
        self.selected_tokens = selected_tokens
        self.sink_blocks = sink_blocks
        self.local_blocks = local_blocks
        self.summary: BlockSummary = self.mixture.summarise(
            k, block_size, sharing=self.sharing, seed=seed
        )

    def append(self, k_token: Tensor) -> None:
        """Take the keys of one more token, `[batch, num_kv_heads, 1, head_dim]`."""
        self.summary.append(k_token)

    def schedule(self, q: Tensor) -> CandidateSchedule:
        """The tokens that `q [batch, num_q_heads, 1, head_dim]` is to attend."""
        budget = token_budget(
            kv_len=self.summary.kv_len,
            block_size=self.summary.block_size,
            selected_tokens=min(self.selected_tokens, self.summary.kv_len),
            sink_blocks=self.sink_blocks,
            local_blocks=self.local_blocks,
        )
        scores = self.mixture.scores(self.summary, q, self.sharing, budget)
        return schedule_tokens(scores, budget)


def select_tokens(
    q: Tensor,
    k: Tensor,
    selected_tokens: int,
    *,
    selector: str | Selector | Mixture = DEFAULT_SELECTOR,
    block_size: int = DEFAULT_BLOCK_SIZE,
    sink_blocks: int = DEFAULT_SINK_BLOCKS,
    local_blocks: int = DEFAULT_LOCAL_BLOCKS,
    sharing: str | None = None,
    seed: int = 0,
) -> Tensor:
    """Token ids to attend, `[batch, groups, selected_tokens]`, int64, ascending, distinct.

    `q` is `[batch, num_q_heads, 1, head_dim]`, `k` `[batch, num_kv_heads, kv_len, head_dim]`.
    groups is 1 where one schedule serves all heads of a request, num_kv_heads or num_q_heads where
    each has its own (`sharing`, by default the selector's own). Always exactly `selected_tokens`,
    or an error: ValueError names the argument, the rule and the value.
    """
    keys = promote_keys(k)
    check_query(q, keys)
    if selected_tokens > keys.shape[2]:
        raise ValueError(f"selected_tokens {selected_tokens} exceeds kv_len {keys.shape[2]}")
    scheduler = Scheduler(
        keys,
        selected_tokens,
        selector=selector,
        block_size=block_size,
        sink_blocks=sink_blocks,
        local_blocks=local_blocks,
        sharing=sharing,
        seed=seed,
    )
    return scheduler.schedule(q).token_ids
