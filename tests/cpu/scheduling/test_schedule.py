"""The budget rule, candidate rows and the expansion to tokens."""

import itertools

import pytest
import torch

from topokv import candidate_rows, centroid_drift, expand_blocks
from topokv.scheduling import schedule_tokens, token_budget
from topokv.scheduling.candidate_rows import candidate_row
from topokv.scheduling.schedule import share

CENTROIDS = torch.tensor([[1, 0], [0.9, 0.1], [-1, 0], [0, 1], [0, 0.9], [0.1, 0.8]])


def schedule(scores, kv_len, block_size, selected_tokens, sink_blocks=1, local_blocks=2):
    budget = token_budget(
        kv_len=kv_len,
        block_size=block_size,
        selected_tokens=selected_tokens,
        sink_blocks=sink_blocks,
        local_blocks=local_blocks,
    )
    return schedule_tokens(torch.as_tensor(scores, dtype=torch.float32)[None, None], budget)


@pytest.mark.parametrize(
    ("kv_len", "block_size", "selected_tokens", "expected"),
    [
        (8, 2, 1, [7]),
        (8, 2, 3, [0, 6, 7]),
        (8, 2, 4, [0, 1, 6, 7]),
        (10, 4, 8, [0, 1, 4, 5, 6, 7, 8, 9]),
        (65, 64, 64, list(range(1, 65))),
        (129, 64, 64, list(range(65, 129))),
        (1, 64, 1, [0]),
    ],
)
def test_budget_table(kv_len, block_size, selected_tokens, expected):
    scores = torch.zeros(-(-kv_len // block_size))
    assert schedule(scores, kv_len, block_size, selected_tokens).token_ids.tolist() == [[expected]]


def test_best_scored_blocks_fill_what_sinks_and_locals_leave():
    ids = schedule([9, 1, 5, 3, 9, 9], 12, 2, 10).token_ids
    assert ids.flatten().tolist() == [0, 1, 4, 5, 6, 7, 8, 9, 10, 11]


def test_the_block_ranked_last_is_cut_and_ids_stay_ascending():
    # Blocks 4 (best) and 1 are scored; one token of block 1 fits.
    ids = schedule([0, 3, 1, 1, 8, 0, 0], 21, 3, 13).token_ids
    assert ids.flatten().tolist() == [0, 1, 2, 3, 12, 13, 14, 15, 16, 17, 18, 19, 20]


def test_ties_go_to_the_lower_block_and_nan_is_lowest():
    nan = float("nan")
    tied = schedule([0, 2, 2, 2, 0, 0], 12, 2, 8)
    assert tied.scored_blocks.tolist() == [[[1]]]
    ranked = schedule([0, nan, float("-inf"), 1, 0, 0], 12, 2, 10)
    assert ranked.scored_blocks.tolist() == [[[3, 1]]]


def test_no_block_is_scored_where_sinks_and_locals_fill_the_budget():
    def scored(tokens):
        return token_budget(
            kv_len=16384, block_size=64, selected_tokens=tokens, sink_blocks=1, local_blocks=2
        ).num_scored_blocks

    assert [scored(tokens) for tokens in (64, 128, 192, 193, 256)] == [0, 0, 0, 1, 1]


def brute_force(scores, kv_len, size, tokens, sinks, local):
    """The budget rule as it is written, one token after the other."""
    blocks = [list(range(i, min(i + size, kv_len))) for i in range(0, kv_len, size)]
    slots = -(-tokens // size)
    sinks = min(sinks, slots - 1)
    local = max(1, min(local, slots - sinks)) + (kv_len % size > 0)
    order = list(itertools.chain(*blocks[-local:]))[::-1] + list(itertools.chain(*blocks[:sinks]))
    for block in sorted(range(len(blocks)), key=lambda b: (-scores[b], b)):
        order += blocks[block]
    return sorted(list(dict.fromkeys(order))[:tokens])


def test_schedules_equal_the_rule_taken_token_by_token():
    generator = torch.Generator().manual_seed(0)
    for kv_len, size in itertools.product((1, 2, 7, 12, 13, 30), (1, 2, 3, 5, 64)):
        scores = torch.randint(0, 4, (-(-kv_len // size),), generator=generator).float()
        for tokens, sinks, local in itertools.product(range(1, kv_len + 1), (0, 1, 3), (0, 1, 2)):
            got = schedule(scores, kv_len, size, tokens, sinks, local).token_ids.flatten().tolist()
            expected = brute_force(scores.tolist(), kv_len, size, tokens, sinks, local)
            assert got == expected, (kv_len, size, tokens, sinks, local)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"selected_tokens": 0}, "selected_tokens must be at least 1, got 0"),
        ({"selected_tokens": 9}, "selected_tokens 9 exceeds kv_len 8"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"kv_len": -1}, "kv_len must be at least 1, got -1"),
        ({"sink_blocks": -1}, "sink_blocks must be at least 0, got -1"),
        ({"local_blocks": -1}, "local_blocks must be at least 0, got -1"),
    ],
)
def test_bad_budgets_are_named(change, message):
    sizes = dict(kv_len=8, block_size=2, selected_tokens=4, sink_blocks=1, local_blocks=2)
    with pytest.raises(ValueError) as error:
        token_budget(**sizes | change)
    assert str(error.value) == message


def test_scores_of_another_cache_are_refused():
    with pytest.raises(ValueError) as error:
        schedule([1, 2, 3], 8, 2, 4)
    assert str(error.value) == "scores must be [batch, groups, 4], got [1, 1, 3]"


def rows(scores, **counts):
    rule = dict(sink_blocks=1, local_blocks=2, salience_blocks=2, max_candidate_blocks=5)
    return candidate_rows(scores, **rule | counts).tolist()


def test_last_row_of_six_centroids():
    assert rows(centroid_drift(CENTROIDS))[5] == [0, 2, 3, 4, 5]


def test_first_rows_hold_no_later_block():
    expected = [[0, -1, -1, -1, -1], [0, 1, -1, -1, -1], [0, 1, 2, -1, -1]]
    assert rows(torch.ones(3)) == expected


@pytest.mark.parametrize("local_blocks", [0, 1])
def test_the_query_block_always_stays(local_blocks):
    last = rows(torch.ones(6), sink_blocks=5, local_blocks=local_blocks, salience_blocks=0)[5]
    assert last == [0, 1, 2, 3, 5]


def row_by_hand(scores, i, sinks, local, salience, width):
    order = [i]
    order += [b for b in range(sinks) if b < i]
    order += [b for b in range(i - 1, max(i - local, -1), -1) if b not in order]
    rest = [b for b in range(i) if b not in order]
    order += sorted(rest, key=lambda b: (-scores[b], b))[:salience]
    kept = sorted(order[:width])
    return kept + [-1] * (width - len(kept))


def test_every_row_equals_the_rule_taken_block_by_block():
    scores = torch.randint(0, 5, (23,), generator=torch.Generator().manual_seed(1)).float()
    for counts in itertools.product((0, 1, 5, 30), (0, 1, 2, 4), (0, 1, 3, 40), (1, 2, 5, 9)):
        sinks, local, salience, width = counts
        rule = dict(
            sink_blocks=sinks,
            local_blocks=local,
            salience_blocks=salience,
            max_candidate_blocks=width,
        )
        got = candidate_rows(scores, **rule)
        expected = [row_by_hand(scores.tolist(), i, *counts) for i in range(23)]
        assert got.tolist() == expected, counts
        assert candidate_row(scores, **rule).tolist() == expected[-1], counts


@pytest.mark.parametrize(
    ("scores", "counts", "message"),
    [
        (torch.ones(2, 2), {}, "scores must be [num_blocks], at least one, got [2, 2]"),
        (torch.ones(0), {}, "scores must be [num_blocks], at least one, got [0]"),
        (
            torch.ones(3),
            {"max_candidate_blocks": 0},
            "max_candidate_blocks must be at least 1, got 0",
        ),
        (torch.ones(3), {"salience_blocks": -1}, "salience_blocks must be at least 0, got -1"),
    ],
)
def test_bad_candidate_counts_are_named(scores, counts, message):
    with pytest.raises(ValueError) as error:
        rows(scores, **counts)
    assert str(error.value) == message


def test_expansion_masks_the_tail_and_the_padding():
    ids = expand_blocks(torch.tensor([0, 2, -1]), 4, 10)
    assert ids.tolist() == [0, 1, 2, 3, 8, 9, -1, -1, -1, -1, -1, -1]


@pytest.mark.parametrize(("block", "shown"), [(3, "3"), (-2, "-2")])
def test_expansion_refuses_blocks_beyond_the_cache(block, shown):
    with pytest.raises(ValueError) as error:
        expand_blocks(torch.tensor([0, block]), 4, 10)
    assert str(error.value) == f"block_ids must be -1 or from 0 to 2, got {shown}"


def test_expansion_refuses_ids_that_are_not_whole_numbers():
    with pytest.raises(TypeError, match=r"^block_ids must be whole numbers, got torch\.float32$"):
        expand_blocks(torch.tensor([0.0]), 4, 10)


def test_sharing_sums_the_heads_that_share():
    scores = torch.arange(8.0).view(1, 2, 2, 2)
    assert share(scores, "q-head", 2, 2).tolist() == [[[0, 1], [2, 3], [4, 5], [6, 7]]]
    assert share(scores, "kv-head", 2, 2).tolist() == [[[2, 4], [10, 12]]]
    assert share(scores, "request", 2, 2).tolist() == [[[12, 16]]]


def test_unknown_sharing_is_named():
    with pytest.raises(ValueError) as error:
        share(torch.ones(1, 1, 1, 1), "head", 1, 1)
    expected = "'request', 'kv-head', 'q-head'"
    assert str(error.value) == f"unknown sharing 'head'; expected one of {expected}"
