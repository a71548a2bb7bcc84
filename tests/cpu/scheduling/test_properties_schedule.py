"""What holds of every schedule, for any sizes and any scores, ties, infinities and NaN included."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from topokv import block_centroids, candidate_rows, centroid_drift, expand_blocks
from topokv.scheduling import schedule_tokens, token_budget
from topokv.scheduling.candidate_rows import candidate_row
from topokv.scheduling.schedule import share

# Few values, so that ties are the rule, and those that sorts get wrong.
SCORES = torch.tensor([-math.inf, -3.0, -0.0, 0.0, 1.0, 1.0, 2.0, 3e38, math.inf, math.nan])


@st.composite
def budgets(draw):
    """The arguments of a budget: any that are allowed, small enough to meet every edge."""
    block_size = draw(st.integers(1, 9) | st.sampled_from([16, 64]))
    kv_len = draw(st.integers(1, 12 * block_size))
    return {
        "kv_len": kv_len,
        "block_size": block_size,
        "selected_tokens": draw(st.integers(1, kv_len)),
        "sink_blocks": draw(st.integers(0, 4)),
        "local_blocks": draw(st.integers(0, 4)),
    }


def scores_of(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return SCORES[torch.randint(len(SCORES), shape, generator=generator)]


seeds = st.integers(0, 2**32)


def num_blocks(asked):
    return -(-asked["kv_len"] // asked["block_size"])


def rank(scores):
    """What sorts blocks from the best to the worst: by score, NaN lowest, then by place."""
    return [(math.inf if math.isnan(s) else -s, block) for block, s in enumerate(scores)]


def chosen(asked, seed, batch=1, groups=1):
    scores = scores_of(batch, groups, num_blocks(asked), seed=seed)
    return scores, schedule_tokens(scores, token_budget(**asked))


@given(budgets())
def test_a_budget_is_spent_to_the_last_token(asked):
    budget = token_budget(**asked)
    assert budget.selected_tokens == asked["selected_tokens"]
    assert min(budget.sink_tokens, budget.scored_tokens, budget.first_local_token) >= 0
    room = (budget.end_scored_block - budget.first_scored_block) * asked["block_size"]
    assert budget.scored_tokens <= room
    assert budget.sink_tokens <= budget.first_scored_block * asked["block_size"]
    assert budget.end_scored_block * asked["block_size"] <= budget.first_local_token or (
        budget.scored_tokens == budget.sink_tokens == 0
    )


@given(budgets())
def test_the_newest_tokens_are_always_selected(asked):
    size, tokens = asked["block_size"], asked["selected_tokens"]
    slots = -(-tokens // size)
    sinks = min(asked["sink_blocks"], slots - 1)
    recent = max(1, min(asked["local_blocks"], slots - sinks)) * size
    budget = token_budget(**asked)
    assert asked["kv_len"] - budget.first_local_token >= min(tokens, asked["kv_len"], recent)


@given(budgets())
def test_sinks_come_before_scored_blocks_and_after_recent_ones(asked):
    size, tokens = asked["block_size"], asked["selected_tokens"]
    budget = token_budget(**asked)
    local = asked["kv_len"] - budget.first_local_token
    sinks = min(asked["sink_blocks"], -(-tokens // size) - 1)
    promised = min(sinks * size, tokens - local, budget.end_scored_block * size)
    assert budget.sink_tokens == promised


@given(budgets(), seeds, st.integers(1, 3), st.integers(1, 3))
def test_schedules_are_exact_distinct_ascending_and_in_range(asked, seed, batch, groups):
    _, schedule = chosen(asked, seed, batch, groups)
    ids = schedule.token_ids
    assert ids.shape == (batch, groups, asked["selected_tokens"]) and ids.dtype == torch.int64
    assert bool((ids[..., 1:] > ids[..., :-1]).all())
    assert int(ids.min()) >= 0 and int(ids.max()) == asked["kv_len"] - 1


@given(budgets(), seeds)
def test_sinks_and_locals_are_selected_whatever_the_scores(asked, seed):
    _, schedule = chosen(asked, seed)
    budget, ids = schedule.budget, set(schedule.token_ids.flatten().tolist())
    assert set(range(budget.sink_tokens)) <= ids
    assert set(range(budget.first_local_token, asked["kv_len"])) <= ids


@given(budgets(), seeds)
def test_no_block_left_out_ranks_above_one_taken(asked, seed):
    scores, schedule = chosen(asked, seed)
    budget, order = schedule.budget, rank(scores.flatten().tolist())
    taken = schedule.scored_blocks.flatten().tolist()
    eligible = range(budget.first_scored_block, budget.end_scored_block)
    assert taken == sorted(eligible, key=order.__getitem__)[: len(taken)]


@given(budgets(), seeds)
def test_scored_blocks_are_whole_but_the_last_ranked_which_keeps_its_start(asked, seed):
    _, schedule = chosen(asked, seed)
    budget, size = schedule.budget, asked["block_size"]
    taken = schedule.scored_blocks.flatten().tolist()
    ranked = [t for block in taken for t in range(block * size, (block + 1) * size)]
    fixed = [*range(budget.sink_tokens), *range(budget.first_local_token, asked["kv_len"])]
    assert sorted(fixed + ranked[: budget.scored_tokens]) == schedule.token_ids.flatten().tolist()


@given(budgets(), seeds)
def test_every_request_and_group_is_scheduled_by_itself(asked, seed):
    scores, schedule = chosen(asked, seed, batch=2, groups=3)
    for request in range(2):
        alone = schedule_tokens(scores[request : request + 1, 1:2], schedule.budget)
        assert torch.equal(alone.token_ids[0, 0], schedule.token_ids[request, 1])


@given(budgets(), seeds)
def test_scores_of_sinks_and_locals_are_never_looked_at(asked, seed):
    scores, schedule = chosen(asked, seed)
    budget = schedule.budget
    scores[..., : budget.first_scored_block] = math.inf
    scores[..., budget.end_scored_block :] = math.inf
    assert torch.equal(schedule_tokens(scores, budget).token_ids, schedule.token_ids)


@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), seeds, st.booleans()
)
def test_heads_that_share_a_schedule_are_summed(batch, heads, group, blocks, seed, query_free):
    whole = torch.randn(batch, heads, group, blocks, generator=torch.Generator().manual_seed(seed))
    scores = whole[:, :, :1] if query_free else whole
    assert torch.equal(share(scores, "q-head", heads, group)[:, 0], scores[:, 0, 0])
    assert torch.equal(share(scores, "kv-head", heads, group), scores.sum(dim=2))
    request = share(scores, "request", heads, group)
    torch.testing.assert_close(request, scores.sum(dim=(1, 2)).unsqueeze(1))


@st.composite
def row_rules(draw):
    return {
        "sink_blocks": draw(st.integers(0, 6)),
        "local_blocks": draw(st.integers(0, 5)),
        "salience_blocks": draw(st.integers(0, 8)),
        "max_candidate_blocks": draw(st.integers(1, 12)),
    }


@given(st.integers(1, 24), seeds, row_rules())
def test_candidate_rows_ascend_and_hold_no_later_block(blocks, seed, rule):
    rows = candidate_rows(scores_of(blocks, seed=seed), **rule)
    assert rows.shape == (blocks, rule["max_candidate_blocks"])
    for i, row in enumerate(rows.tolist()):
        kept = [block for block in row if block >= 0]
        assert kept == sorted(set(kept)) and kept[-1] == i
        assert row == kept + [-1] * (len(row) - len(kept))


@given(st.integers(1, 24), seeds, row_rules())
def test_candidate_rows_take_query_block_sinks_locals_then_the_best(blocks, seed, rule):
    scores = scores_of(blocks, seed=seed)
    order, row = rank(scores.tolist()), candidate_row(scores, **rule).tolist()
    last = blocks - 1
    wanted = [last, *range(min(rule["sink_blocks"], last))]
    wanted += [b for b in range(last - 1, last - rule["local_blocks"], -1) if b not in wanted]
    wanted = [b for b in wanted if b >= 0]
    rest = sorted(set(range(last)) - set(wanted), key=order.__getitem__)
    wanted += rest[: rule["salience_blocks"]]
    assert [b for b in row if b >= 0] == sorted(wanted[: rule["max_candidate_blocks"]])


@given(st.integers(1, 24), seeds, row_rules())
def test_a_candidate_row_does_not_depend_on_later_blocks(blocks, seed, rule):
    scores = scores_of(blocks, seed=seed)
    rows = candidate_rows(scores, **rule)
    for i in (0, blocks // 2, blocks - 1):
        assert torch.equal(rows[i], candidate_row(scores[: i + 1], **rule))


@given(budgets(), st.lists(st.integers(-1, 11), min_size=1, max_size=9))
def test_expansion_lists_each_block_in_its_own_slots(asked, blocks):
    size, kv_len = asked["block_size"], asked["kv_len"]
    ids = [min(block, num_blocks(asked) - 1) for block in blocks]
    expanded = expand_blocks(torch.tensor(ids), size, kv_len).view(-1, size).tolist()
    for block, tokens in zip(ids, expanded, strict=True):
        there = range(block * size, min((block + 1) * size, kv_len)) if block >= 0 else ()
        assert tokens == [*there] + [-1] * (size - len(there))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@given(asked=budgets(), seed=seeds)
def test_centroids_are_means_and_drift_is_their_distance(dtype, asked, seed):
    keys = torch.randn(1, 2, asked["kv_len"], 3, generator=torch.Generator().manual_seed(seed)).to(
        dtype
    )
    centroids = block_centroids(keys, asked["block_size"])
    assert centroids.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    blocks = keys.double().split(asked["block_size"], dim=2)
    means = torch.stack([block.mean(dim=2) for block in blocks], dim=2)
    torch.testing.assert_close(centroids.double(), means, rtol=1e-5, atol=1e-6)
    steps = torch.cat((torch.zeros_like(means[:, :, :1]), means.diff(dim=2)), dim=2)
    expected = steps.norm(dim=-1)
    torch.testing.assert_close(centroid_drift(centroids).double(), expected, rtol=1e-4, atol=1e-5)
