"""Ranking many blocks, where topk over keys replaces a sort: the rule for ties is the same."""

import pytest
import torch

from topokv.scheduling import schedule_tokens, token_budget
from topokv.scheduling.candidate_rows import candidate_row, candidate_rows

NUM_BLOCKS = 5000


def drawn(kind, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3, NUM_BLOCKS, generator=generator)
    if kind == "tied":
        scores = (scores * 2).round()
    if kind == "broken":
        strange = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0])
        scores = strange[torch.randint(5, scores.shape, generator=generator)]
    if kind == "all equal":
        scores = torch.zeros_like(scores)
    if kind == "negative":
        scores = -scores.abs() - 1
    return scores.to(dtype)


def by_sorting(scores, count):
    """Places of the highest scores, NaN lowest, by a plain Python sort, which is stable."""
    rows = scores.float().nan_to_num(-torch.inf, torch.inf, -torch.inf).flatten(0, 1).tolist()
    best = [sorted(range(len(row)), key=lambda i: -row[i])[:count] for row in rows]
    return torch.tensor(best).view(*scores.shape[:2], count)


@pytest.mark.parametrize("kind", ["distinct", "tied", "broken", "all equal", "negative"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_many_blocks_rank_as_by_a_stable_sort(kind, dtype):
    scores = drawn(kind, dtype)
    budget = token_budget(
        kv_len=NUM_BLOCKS, block_size=1, selected_tokens=30, sink_blocks=0, local_blocks=1
    )
    found = schedule_tokens(scores, budget).scored_blocks
    assert torch.equal(found, by_sorting(scores[..., : NUM_BLOCKS - 1], 29))


@pytest.mark.parametrize("kind", ["distinct", "tied", "broken"])
def test_many_causal_rows_are_those_taken_one_at_a_time(kind):
    scores = drawn(kind)[0, 0]
    counts = {"sink_blocks": 2, "local_blocks": 3, "salience_blocks": 9, "max_candidate_blocks": 12}
    rows = candidate_rows(scores, **counts)
    for row in (0, 1, 4, 5, 63, 1024, 4097, NUM_BLOCKS - 1):
        assert torch.equal(rows[row], candidate_row(scores[: row + 1], **counts))
