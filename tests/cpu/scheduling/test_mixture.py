"""Mixtures: each selector fills its share of the scored blocks, overlaps refilled."""

import pytest
import torch

from topokv import select_tokens
from topokv.inputs.workload import gaussian
from topokv.scheduling import mixture_of, schedule_tokens, token_budget
from topokv.scheduling.schedule import SHARINGS, mix, share
from topokv.scheduling.selectors import selector_named

# Blocks of one token: block ids are token ids. Nothing is forced but the newest token.
ONE_BY_ONE = {"kv_len": 9, "block_size": 1, "sink_blocks": 0, "local_blocks": 1}


def taken(rankings, shares, selected_tokens):
    """Token ids of one schedule, from one list of scores a selector."""
    budget = token_budget(selected_tokens=selected_tokens, **ONE_BY_ONE)
    scores = [torch.tensor(ranking, dtype=torch.float32)[None, None] for ranking in rankings]
    return schedule_tokens(mix(scores, shares, budget), budget).token_ids.flatten().tolist()


RISING = [0, 1, 2, 3, 4, 5, 6, 7, 8]
FALLING = [8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_each_ranking_takes_its_share():
    assert taken([RISING, FALLING], [0.5, 0.5], 5) == [0, 1, 6, 7, 8]


def test_an_overlap_is_refilled_further_down():
    assert taken([RISING, RISING], [0.5, 0.5], 5) == [4, 5, 6, 7, 8]


def test_the_largest_remainder_takes_the_odd_block():
    assert taken([RISING, FALLING], [0.6, 0.4], 4) == [0, 6, 7, 8]
    assert taken([RISING, FALLING], [0.4, 0.6], 4) == [0, 1, 7, 8]


def test_infinite_and_missing_scores_still_fill_the_budget():
    empty = [float("nan")] * 5 + [-torch.inf] * 4
    assert len(taken([empty, FALLING], [0.75, 0.25], 9)) == 9


def reference(work, shares, sharing, budget):
    """Scored blocks of each schedule, best first, from lists in plain Python."""
    group = work.q.shape[1] // work.cache.num_kv_heads
    ranked = []
    for name, _ in shares:
        selector = selector_named(name)
        summary = selector.summarise(work.cache.k, budget.block_size, sharing=sharing)
        scores = selector.score(summary, work.q)
        ranked.append(share(scores, sharing, work.cache.num_kv_heads, group))
    chosen = {}
    for b in range(ranked[0].shape[0]):
        for g in range(ranked[0].shape[1]):
            blocks = []
            for (_, fraction), scores in zip(shares, ranked, strict=True):
                eligible = range(budget.first_scored_block, budget.end_scored_block)
                order = sorted(eligible, key=lambda i, s=scores[b, g]: (-float(s[i]), i))
                quota = round(budget.num_scored_blocks * fraction)
                blocks += [i for i in order if i not in blocks][:quota]
            chosen[b, g] = blocks
    return chosen


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("group", [1, 3, 4])
@pytest.mark.parametrize(
    "shares",
    [
        (("witness", 0.5), ("drift", 0.5)),
        (("quest", 0.75), ("witness", 0.25)),
        (("keydiff", 0.25), ("oracle", 0.5), ("random", 0.25)),
    ],
)
def test_select_tokens_follows_the_shares(shares, group, sharing):
    work = gaussian(batch=2, num_q_heads=2 * group, num_kv_heads=2, kv_len=38, head_dim=4)
    rule = {"block_size": 4, "sink_blocks": 1, "local_blocks": 2}
    budget = token_budget(kv_len=38, selected_tokens=30, **rule)
    assert budget.num_scored_blocks == 4
    name = ",".join(f"{name}={fraction}" for name, fraction in shares)
    ids = select_tokens(work.q, work.cache.k, 30, selector=name, sharing=sharing, **rule)
    for (b, g), blocks in reference(work, shares, sharing, budget).items():
        whole = {t for block in blocks for t in range(4 * block, 4 * block + 4)}
        assert set(ids[b, g].tolist()) == {0, 1, 2, 3} | whole | set(range(28, 38))


def test_a_mixture_takes_the_finest_sharing():
    assert mixture_of("drift=0.5,streaming=0.5").sharing == "request"
    assert mixture_of("drift=0.5,witness=0.5").sharing == "kv-head"


def test_a_mixture_reads_what_its_selectors_read():
    mixed = mixture_of("witness=0.5,quest=0.5")
    assert mixed.parts == {"points", "log_weights", "box"}
    assert mixed.floats_per_block(64, 16) == 256
    assert mixed.name == "witness=0.5,quest=0.5"
    assert mixture_of("quest").name == "quest"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("witness=0.5,drift=0.6", "must add up to 1, got 1.1"),
        ("witness=1.5,drift=-0.5", "must be above 0"),
        ("witness=nan,drift=0.5", "must be above 0"),
    ],
)
def test_shares_that_do_not_divide_the_budget_are_refused(text, message):
    with pytest.raises(ValueError) as error:
        mixture_of(text)
    assert str(error.value) == f"shares of {text!r} {message}"


def test_a_share_that_is_no_number_is_refused():
    message = "shares must be numbers, as in 'witness=0.5,drift=0.5', got 'witness=half,drift=0.5'"
    with pytest.raises(ValueError, match=f"^{message}$"):
        mixture_of("witness=half,drift=0.5")


def test_a_selector_named_twice_is_refused():
    with pytest.raises(ValueError, match="^a mixture names each selector once, got 'drift' twice$"):
        mixture_of("drift=0.5,drift=0.5")


def test_an_unknown_selector_in_a_mixture_is_answered_with_the_valid_ones():
    with pytest.raises(ValueError, match="^unknown selector 'driftt'; expected one of 'drift', "):
        mixture_of("driftt=0.5,witness=0.5")
