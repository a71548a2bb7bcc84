"""A growing cache is scheduled as one that is seen whole, at every length."""

import pytest
import torch

from topokv import Scheduler
from topokv.scheduling import SELECTORS, BlockSummary
from topokv.scheduling.block_summary import PARTS

# Landmarks are judged by statistics of the keys that a summary began with, and so may differ.
OF_THE_START = {"landmarks", "spread"}

by_selector = pytest.mark.parametrize(
    "selector", [s for s in SELECTORS if OF_THE_START.isdisjoint(s.parts)], ids=lambda s: s.name
)


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@by_selector
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_length_is_scheduled_as_from_scratch(selector, dtype):
    k, q = drawn(2, 2, 150, 8, dtype=dtype), drawn(2, 4, 1, 8, seed=1, dtype=dtype)
    grown = Scheduler(k[:, :, :1], 40, selector=selector, block_size=8)
    for kv_len in range(2, 151):
        grown.append(k[:, :, kv_len - 1 : kv_len])
        fresh = Scheduler(k[:, :, :kv_len], 40, selector=selector, block_size=8)
        assert torch.equal(grown.schedule(q).token_ids, fresh.schedule(q).token_ids)


@pytest.mark.parametrize("part", sorted(set(PARTS) - OF_THE_START))
def test_a_grown_summary_equals_one_from_scratch_bit_for_bit(part):
    k = drawn(1, 2, 67, 8)
    grown = BlockSummary(k[:, :, :9], 4, [part])
    for token in range(9, 67):
        grown.append(k[:, :, token : token + 1])
    assert torch.equal(grown[part], BlockSummary(k, 4, [part])[part])


def test_a_token_copies_no_summary_while_its_room_lasts():
    k = drawn(1, 2, 400, 8)
    parts = set(PARTS) - {"keys", "spread"}
    summary = BlockSummary(k[:, :, :300], 4, parts)
    summary.append(k[:, :, 300:301])
    places = {part: summary[part].data_ptr() for part in parts}
    for token in range(301, 364):
        summary.append(k[:, :, token : token + 1])
    assert {part: summary[part].data_ptr() for part in parts} == places


def test_points_weigh_as_many_tokens_as_they_stand_for():
    k = drawn(1, 1, 10, 4)
    summary = BlockSummary(k[:, :, :3], 4, ["log_weights"])
    weights = []
    for token in range(3, 10):
        summary.append(k[:, :, token : token + 1])
        weights.append(summary["log_weights"].exp().round().int()[0, 0].tolist())
    assert weights[0] == [[3, 1]]
    assert weights[1] == [[3, 1], [0, 1]]
    assert weights[-1] == [[3, 1], [3, 1], [1, 1]]
