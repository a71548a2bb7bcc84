"""Attention without a copy: each run of neighbouring tokens where it lies, merged afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from topokv.scheduling import Budget, CandidateSchedule
from topokv.tensors import KVCache, group_queries

_Run = tuple[int, int]


class RunDecode:
    """Attend each run of neighbouring tokens in place, then merge the runs by log-sum-exp.

    One call for each run of each schedule: good where all heads of a request share a schedule,
    poor where each has its own. Which runs there are is read on the host, while loading.
    """

    def load(self, q: Tensor, cache: KVCache, schedule: CandidateSchedule) -> RunDecode:
        self._shape = q.shape
        self._parts = [
            [(queries, *run) for run in runs] for queries, runs in _attended(q, cache, schedule)
        ]
        self._batch = cache.batch
        return self

    def __call__(self) -> Tensor:
        merged = [_merge([_attend_run(*run) for run in runs]) for runs in self._parts]
        return torch.cat(merged, dim=1).reshape(self._shape)


def _attended(
    q: Tensor, cache: KVCache, schedule: CandidateSchedule
) -> Iterator[tuple[Tensor, list[tuple[Tensor, Tensor]]]]:
    """For each schedule its queries, `[1, heads, rows, head_dim]`, and the runs of K and V."""
    groups = schedule.scored_blocks.shape[1]
    per_schedule = max(1, cache.num_kv_heads // groups)
    queries = group_queries(q, max(groups, cache.num_kv_heads))
    for request, of_groups in enumerate(schedule.scored_blocks.tolist()):
        for group, blocks in enumerate(of_groups):
            rows = slice(group * per_schedule, (group + 1) * per_schedule)
            first = group * cache.num_kv_heads // groups
            heads = slice(first, first + per_schedule)
            k, v = (tensor[request : request + 1, heads] for tensor in (cache.k, cache.v))
            runs = [(k[:, :, a:b], v[:, :, a:b]) for a, b in token_runs(blocks, schedule.budget)]
            yield queries[request : request + 1, rows], runs


def token_runs(scored_blocks: list[int], budget: Budget) -> list[_Run]:
    """The runs of neighbouring tokens, (first, end), that a schedule attends, ascending.

    `scored_blocks` is best first: the last is attended as far as the budget goes.
    """
    size = budget.block_size
    spare = len(scored_blocks) * size - budget.scored_tokens
    spans = [(block * size, (block + 1) * size) for block in scored_blocks]
    if spare:
        spans[-1] = (spans[-1][0], spans[-1][1] - spare)
    spans += [(0, budget.sink_tokens), (budget.first_local_token, budget.kv_len)]
    runs: list[_Run] = []
    for first, end in sorted(span for span in spans if span[0] < span[1]):
        if runs and runs[-1][1] == first:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((first, end))
    return runs


def _attend_run(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """A run's output, `[1, heads, rows, head_dim]`, and the logarithm of its mass."""
    if q.device.type == "cpu":
        op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        output, mass = op(q, k, v)
    elif q.element_size() == 2:
        output, mass = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)[:2]
    else:
        op = torch.ops.aten._scaled_dot_product_efficient_attention
        output, mass = op(q, k, v, None, True)[:2]
    # The efficient kernel pads the rows of what it returns.
    return output, mass[..., : q.shape[2]]


def _merge(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The output of all runs together: each weighs as much as its mass."""
    outputs = [output for output, _ in parts]
    if len(parts) == 1:
        return outputs[0]
    weights = torch.stack([mass for _, mass in parts]).softmax(dim=0).unsqueeze(-1)
    return (torch.stack(outputs) * weights).sum(dim=0).to(outputs[0].dtype)
