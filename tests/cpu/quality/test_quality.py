"""What a selection keeps, against attention written out in float64, token by token."""

import itertools
import math

import pytest
import torch

from topokv import KVCache, select_tokens
from topokv.inputs.workload import gaussian
from topokv.quality.measures import (
    DenseReference,
    gap_closed,
    interval,
    measure,
    resampled_means,
    verdict,
)
from topokv.scheduling import SELECTORS
from topokv.scheduling.schedule import SHARINGS

NAMES = [selector.name for selector in SELECTORS]
MIXTURES = ["witness=0.5,drift=0.5", "streaming=0.25,quest=0.25,random=0.5"]


def attention(q, k, v, tokens):
    """Weights over all tokens, and the output over `tokens` alone, of one head; plain Python."""
    logits = [sum(a * b for a, b in zip(q, key, strict=True)) / math.sqrt(len(q)) for key in k]
    top = max(logits)
    mass = [math.exp(logit - top) for logit in logits]
    kept = sum(mass[t] for t in tokens)
    output = [sum(mass[t] * v[t][d] for t in tokens) / kept for d in range(len(q))]
    return [m / sum(mass) for m in mass], output


def by_hand(q, cache, token_ids):
    """Recall and output error of each head in turn."""
    recalls, errors = [], []
    num_q_heads, groups = q.shape[1], token_ids.shape[1]
    for b, h in itertools.product(range(q.shape[0]), range(num_q_heads)):
        kv_head = h * cache.num_kv_heads // num_q_heads
        k, v = cache.k[b, kv_head].tolist(), cache.v[b, kv_head].tolist()
        tokens = [t for t in token_ids[b, h * groups // num_q_heads].tolist() if t >= 0]
        weights, sparse = attention(q[b, h, 0].tolist(), k, v, tokens)
        _, dense = attention(q[b, h, 0].tolist(), k, v, range(len(k)))
        recalls.append(sum(weights[t] for t in tokens))
        errors.append(math.dist(sparse, dense) / math.hypot(*dense))
    return recalls, errors


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("group", [1, 3, 4])
@pytest.mark.parametrize("name", [*NAMES, *MIXTURES])
def test_recall_and_output_error_equal_brute_force(name, group, sharing):
    work = gaussian(
        batch=2, num_q_heads=2 * group, num_kv_heads=2, kv_len=22, head_dim=4, seed=group
    )
    ids = select_tokens(work.q, work.cache.k, 13, selector=name, block_size=4, sharing=sharing)
    recalls, errors = by_hand(work.q, work.cache, ids)
    measured = measure(work.q, work.cache, ids)
    assert measured == {
        "recall": pytest.approx(sum(recalls) / len(recalls), abs=1e-9),
        "recall_worst": pytest.approx(min(recalls), abs=1e-9),
        "output_error": pytest.approx(sum(errors) / len(errors), abs=1e-9),
        "output_error_worst": pytest.approx(max(errors), abs=1e-9),
    }


def test_all_tokens_keep_everything():
    work = gaussian(batch=2, num_q_heads=6, num_kv_heads=2, kv_len=9, head_dim=4)
    measured = measure(work.q, work.cache, torch.arange(9).expand(2, 1, -1))
    assert measured["recall"] == pytest.approx(1)
    assert measured["recall_worst"] == pytest.approx(1)
    assert measured["output_error_worst"] == pytest.approx(0, abs=1e-12)


def test_padding_counts_for_nothing():
    work = gaussian(num_q_heads=2, num_kv_heads=2, kv_len=8, head_dim=4)
    padded = torch.tensor([[[3, 5, -1, -1]]])
    assert measure(work.q, work.cache, padded) == measure(work.q, work.cache, padded[..., :2])


def test_recall_by_hand():
    # Logits ln 1, ln 2, ln 5 at head_dim 1: weights 1/8, 2/8, 5/8.
    k = torch.tensor([1.0, 2.0, 5.0]).log().view(1, 1, 3, 1)
    v = torch.tensor([0.0, 4.0, 8.0]).view(1, 1, 3, 1)
    measured = measure(torch.ones(1, 1, 1, 1), KVCache(k, v), torch.tensor([[[1, 2]]]))
    assert measured["recall"] == pytest.approx(7 / 8, abs=1e-6)
    # Dense 0/8 + 8/8 + 40/8 = 6; sparse 2/7 * 4 + 5/7 * 8 = 48/7.
    assert measured["output_error"] == pytest.approx((48 / 7 - 6) / 6, abs=1e-6)


def test_one_reference_judges_many_schedules():
    work = gaussian(num_q_heads=4, num_kv_heads=2, kv_len=20, head_dim=4)
    reference = DenseReference.of(work.q, work.cache)
    for width in (1, 7, 20):
        ids = torch.arange(width).expand(1, 2, -1)
        assert reference.measure(ids) == measure(work.q, work.cache, ids)


def test_measure_checks_token_ids():
    work = gaussian(num_q_heads=2, num_kv_heads=2, kv_len=8, head_dim=4)
    with pytest.raises(ValueError, match=r"^token_ids must be distinct in each row, got 3 twice$"):
        measure(work.q, work.cache, torch.tensor([[[3, 3]]]))


@pytest.mark.parametrize(
    ("recall", "expected"), [(0.2, 0.0), (0.6, 1.0), (0.5, 0.75), (0.1, -0.25)]
)
def test_gap_closed(recall, expected):
    assert gap_closed(recall, 0.2, 0.6) == pytest.approx(expected)


def test_gap_closed_is_none_where_there_is_no_gap():
    assert gap_closed(0.5, 0.5, 0.5) is None


def test_resampled_means_of_equal_units_are_that_unit():
    draws = resampled_means(torch.tensor([[0.25, 0.5]], dtype=torch.float64).expand(7, -1))
    torch.testing.assert_close(draws, draws.new_tensor([[0.25, 0.5]]).expand_as(draws))


def test_resampled_means_spread_as_the_standard_error_does():
    values = torch.randn(200, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    draws = resampled_means(values)
    assert float(draws.std()) == pytest.approx(float(values.std()) / 200**0.5, rel=0.1)
    assert torch.equal(draws, resampled_means(values))


def test_resampled_columns_stay_pairs():
    values = torch.randn(50, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    draws = resampled_means(torch.cat((values, values + 0.125), dim=1))
    torch.testing.assert_close(draws[:, 1] - draws[:, 0], torch.full_like(draws[:, 0], 0.125))


def test_interval_holds_the_middle_95_percent():
    assert interval(torch.arange(1001, dtype=torch.float64)) == pytest.approx((25, 975))


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        ((0.01, 0.02), "better"),
        ((-0.02, -0.01), "worse"),
        ((-0.01, 0.01), "cannot tell"),
        ((0.0, 0.0), "cannot tell"),
    ],
)
def test_verdict(difference, expected):
    assert verdict(difference) == expected
