"""Block centroids, drift and the summaries, by cases a person can compute."""

import pytest
import torch

from topokv import block_centroids, centroid_drift
from topokv.scheduling import BlockSummary
from topokv.scheduling.block_summary import block_noise

POINTS = torch.tensor([[1.0, 1], [3, 3], [10, 0], [14, 4], [5, 7]])


def test_centroid_of_half_precision_keys_accumulates_in_float32():
    keys = torch.tensor([[1024.0], [1025], [1026], [1027]], dtype=torch.float16)
    centroids = block_centroids(keys, 4)
    assert centroids.dtype == torch.float32
    assert centroids.item() == 1025.5


def test_partial_block_divides_by_its_own_count():
    expected = torch.tensor([[2.0, 2], [12, 2], [5, 7]])
    assert torch.equal(block_centroids(POINTS, 2), expected[None, None])


def test_float64_keys_stay_float64():
    assert block_centroids(POINTS.double(), 2).dtype == torch.float64


@pytest.mark.parametrize("leading", [(), (2,), (3, 2)])
def test_keys_of_rank_two_and_three_are_promoted(leading):
    keys = POINTS.expand(*leading, 5, 2)
    assert block_centroids(keys, 2).shape == (*(1, 1, *leading)[-2:], 3, 2)


@pytest.mark.parametrize("kv_len", [1, 2, 7, 64, 65])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_centroids_equal_a_float64_loop(kv_len, dtype):
    keys = torch.randn(2, 3, kv_len, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = torch.stack(
        [keys[:, :, i : i + 4].double().mean(dim=2) for i in range(0, kv_len, 4)], dim=2
    )
    torch.testing.assert_close(block_centroids(keys, 4).double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("keys", "block_size", "message"),
    [
        (torch.zeros(4, 2), 0, "block_size must be at least 1, got 0"),
        (torch.zeros(4, 2), -3, "block_size must be at least 1, got -3"),
        (
            torch.zeros(0, 2),
            4,
            "k must be [batch, num_kv_heads, kv_len, head_dim], [num_kv_heads, kv_len, head_dim] "
            "or [kv_len, head_dim], every size at least 1, got [0, 2]",
        ),
        (
            torch.zeros(4),
            4,
            "k must be [batch, num_kv_heads, kv_len, head_dim], [num_kv_heads, kv_len, head_dim] "
            "or [kv_len, head_dim], every size at least 1, got [4]",
        ),
    ],
)
def test_bad_keys_are_named_with_rule_and_value(keys, block_size, message):
    with pytest.raises(ValueError) as error:
        block_centroids(keys, block_size)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("keys", "block_size", "message"),
    [
        ([1.0], 4, "k must be a tensor, got list"),
        (
            torch.zeros(4, 2, dtype=torch.int64),
            4,
            "k must be of a floating-point type, got torch.int64",
        ),
        (torch.zeros(4, 2), 1.5, "block_size must be a whole number, got 1.5"),
        (torch.zeros(4, 2), True, "block_size must be a whole number, got True"),
    ],
)
def test_wrong_kinds_are_named(keys, block_size, message):
    with pytest.raises(TypeError) as error:
        block_centroids(keys, block_size)
    assert str(error.value) == message


def test_drift_is_the_distance_from_the_block_before():
    centroids = torch.tensor([[0.0, 0], [3, 4], [3, 4], [0, 4]])
    assert centroid_drift(centroids).tolist() == [0, 5, 0, 3]


def test_drift_of_one_block_is_zero():
    assert centroid_drift(torch.ones(1, 2)).tolist() == [0]


def test_drift_for_all_heads_averages_centroids_first():
    keys = torch.tensor([[[0.0], [4]], [[0.0], [-4]]])[None]
    alone = BlockSummary(keys, 1, ("drift",))
    shared = BlockSummary(keys, 1, ("drift",), shared_heads=True)
    assert alone["drift"].tolist() == [[[0, 4], [0, 4]]]
    assert shared["drift"].tolist() == [[[0, 0]]]


def test_summary_parts_of_a_block_computed_by_hand():
    keys = torch.tensor([[0.0, 0], [2, 0], [0, 2], [10, 10]])[None, None]
    summary = BlockSummary(keys, 4, ("box", "points", "variance"))
    assert summary["box"].tolist() == [[[[[0, 0], [10, 10]]]]]
    core, witness = summary["points"][0, 0, 0]
    assert witness.tolist() == [10, 10]
    torch.testing.assert_close(core, torch.tensor([2 / 3, 2 / 3]))
    torch.testing.assert_close(summary["variance"].flatten(), torch.tensor([34.0]))


def test_a_lone_key_is_its_own_witness_and_core():
    summary = BlockSummary(torch.tensor([[[[3.0, 4]]]]), 4, ("points", "variance"))
    assert summary["points"].tolist() == [[[[[3, 4], [3, 4]]]]]
    assert summary["variance"].tolist() == [[[0]]]


def test_noise_of_a_block_does_not_depend_on_how_many_there_are():
    whole = block_noise(7, 2, 3, 0, 100)
    assert torch.equal(block_noise(7, 2, 3, 40, 41), whole[..., 40:41])
    assert not torch.equal(block_noise(8, 2, 3, 0, 100), whole)


def test_noise_is_uniform_and_differs_between_heads():
    noise = block_noise(0, 2, 4, 0, 5000)
    assert noise.min() >= 0
    assert noise.max() < 1
    # Five standard errors of the mean of 5,000 uniform numbers.
    assert ((noise.mean(dim=-1) - 0.5).abs() < 5 * (1 / 12 / 5000) ** 0.5).all()
    assert noise.flatten(0, 1).unique(dim=0).shape[0] == 8
