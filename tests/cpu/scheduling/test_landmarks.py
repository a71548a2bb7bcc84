"""Landmarks: the metric that tells a block's outstanding key, and the spread of the others."""

import pytest
import torch

from topokv.inputs.workload import gaussian
from topokv.scheduling import BlockSummary
from topokv.scheduling.landmarks import KeyMoments, spread_of_others, squared_reach

PARTS = ("landmarks", "spread")


def keys(kv_len, head_dim=6):
    work = gaussian(num_q_heads=2, num_kv_heads=2, kv_len=kv_len, head_dim=head_dim, batch=2)
    return work.cache.k.double()


def metric_of(k, block_size):
    moments = KeyMoments()
    moments.add(k.unflatten(2, (-1, block_size)))
    return moments.metric()


def test_metric_looks_along_what_tells_blocks_apart_not_along_noise():
    k = torch.tensor([[0.0, 5], [0, -5], [1, 5], [1, -5]]) + torch.tensor([0.1, 0]) * torch.tensor(
        [[1.0], [-1], [-1], [1]]
    )
    metric = metric_of(k[None, None], 2)[0, 0]
    assert metric[0, 0] > 0
    assert metric[1, 1] == pytest.approx(0)


def test_metric_of_one_block_is_zero():
    assert torch.equal(metric_of(keys(4), 4), torch.zeros(2, 2, 6, 6, dtype=torch.float64))


def test_a_dimension_that_never_varies_has_no_say():
    k = keys(64)
    k[..., 2] = 7
    metric = metric_of(k, 8)
    assert metric.isfinite().all()
    assert not metric[..., 2].any()
    assert not metric[..., 2, :].any()


def test_moments_added_in_pieces_equal_those_of_the_whole():
    k = keys(96).unflatten(2, (-1, 8))
    whole, pieces = KeyMoments(), KeyMoments()
    whole.add(k)
    for piece in k.split(5, dim=2):
        pieces.add(piece)
    torch.testing.assert_close(pieces.metric(), whole.metric())
    torch.testing.assert_close(pieces.scatter, whole.scatter)


def test_moments_of_no_block_are_refused():
    with pytest.raises(ValueError, match="^scatter needs at least one block, got none$"):
        KeyMoments().metric()


def test_reach_is_the_metric_of_the_distance_from_the_blocks_mean():
    k = keys(24).unflatten(2, (-1, 8))
    metric = metric_of(keys(24), 8)
    rest = k - k.mean(dim=3, keepdim=True)
    expected = torch.einsum("bhnsd,bhde,bhnse->bhns", rest, metric, rest)
    torch.testing.assert_close(squared_reach(k, k.mean(dim=-2), metric), expected)


@pytest.mark.parametrize("kv_len", [24, 29, 25, 8, 1])
def test_spread_is_the_pooled_covariance_of_all_keys_but_the_landmarks(kv_len):
    k = keys(kv_len)
    summary = BlockSummary(k, 8, PARTS)
    scatter = torch.zeros(2, 2, 6, 6, dtype=torch.float64)
    freedom = 0
    for block, landmark in zip(
        k.split(8, dim=2), summary["landmarks"][..., 1, :].unbind(2), strict=True
    ):
        others = (block != landmark.unsqueeze(2)).any(-1, keepdim=True)
        rest = (block - (block * others).sum(2, keepdim=True) / max(1, block.shape[2] - 1)) * others
        scatter += rest.mT @ rest
        freedom += max(0, block.shape[2] - 2)
    torch.testing.assert_close(summary["spread"], scatter / max(1, freedom))


def test_a_grown_cache_keeps_the_statistics_of_its_start():
    k = keys(45)
    grown = BlockSummary(k[:, :, :24], 8, PARTS)
    metric, spread = metric_of(k[:, :, :24], 8), grown["spread"].clone()
    for token in range(24, 45):
        grown.append(k[:, :, token : token + 1])
    assert torch.equal(grown["spread"], spread)
    for index, block in enumerate(k.split(8, dim=2)):
        far = squared_reach(block.unsqueeze(2), block.mean(dim=2, keepdim=True), metric).argmax(-1)[
            ..., None
        ]
        expected = block.gather(2, far.expand(-1, -1, -1, 6)).squeeze(2)
        assert torch.equal(grown["landmarks"][:, :, index, 1], expected)
        bulk = (block.sum(2) - expected) / (block.shape[2] - 1)
        torch.testing.assert_close(grown["landmarks"][:, :, index, 0], bulk)


def test_spread_of_lone_keys_is_zero():
    k = keys(5)
    spread = spread_of_others(
        torch.zeros(2, 2, 6, 6).double(), torch.stack((k, k), dim=-2), torch.ones(5)
    )
    assert not spread.any()
