"""From samples to a row, with numbers a person can check."""

from dataclasses import replace

import pytest

from topokv.bench import Part, failed
from topokv.bench.parent.metrics import summarise
from topokv.results import Row

ROW = Row(seq_len=1000, selected_tokens=100, selector="drift", status="interrupted")


def part(sparse=1.0, *, again=8.0, facts=None, **fields):
    """A part of six rounds: dense 8 ms, sparse as told."""
    samples = {
        "dense_sdpa_ms": [8.0] * 6,
        "dense_again_ms": [again] * 6,
        "sparse_selected_ms": [sparse] * 6,
        "dense_warm_ms": [4.0] * 6,
        "sparse_warm_ms": [0.5] * 6,
        "score_ms": [0.5, 0.5],
        "update_ms": [0.5],
        "summary_ms": [24.0],
        "copy_ms": [2.0],
        "read_ms": [4.0],
    }
    known = {"cache_bytes": 8e6, "copy_bytes": 1e6, "selected_bytes": 8e5, "density": 0.1}
    return Part(samples=samples, facts=known | (facts or {}), **fields)


def test_columns_by_hand():
    row = summarise(ROW, [part(), part(), part()], 3)
    metrics = row.metrics
    assert (row.status, row.reason) == ("ok", None)
    assert (metrics["dense_sdpa_ms"], metrics["sparse_selected_ms"], metrics["speedup"]) == (
        8,
        1,
        8,
    )
    assert (metrics["speedup_low"], metrics["speedup_high"]) == (
        pytest.approx(8),
        pytest.approx(8),
    )
    assert metrics["warm_speedup"] == 8
    assert metrics["aa_ratio"] == 1
    assert metrics["step_ms"] == 2
    assert metrics["step_speedup"] == 4
    assert metrics["break_even_steps"] == 4
    assert metrics["ceiling"] == 10
    assert metrics["effective_gbps"] == pytest.approx(1.0)
    assert metrics["sparse_gbps"] == pytest.approx(0.8)
    assert (metrics["copy_gbps"], metrics["copy_share"]) == (pytest.approx(1), pytest.approx(1))
    assert (metrics["read_gbps"], metrics["read_share"]) == (pytest.approx(2), pytest.approx(0.5))
    assert (metrics["sparse_p50_ms"], metrics["sparse_p99_ms"]) == (1, 1)
    assert (metrics["num_processes"], metrics["density"]) == (3, 0.1)
    assert row.flags == ()


def test_raw_samples_stay_by_process():
    row = summarise(ROW, [part(1.0), part(2.0)], 2)
    assert row.samples["sparse_selected_ms"] == ((1.0,) * 6, (2.0,) * 6)
    assert row.samples["dense_again_ms"] == ((8.0,) * 6, (8.0,) * 6)


def test_the_speedup_is_the_median_over_processes_of_the_medians_of_pairs():
    assert summarise(ROW, [part(1.0), part(2.0), part(4.0)], 3).metrics["speedup"] == 4


def test_one_process_claims_no_interval():
    metrics = summarise(ROW, [part()], 1).metrics
    assert metrics["speedup_low"] is metrics["speedup_high"] is None


def test_a_row_short_of_processes_is_interrupted_with_what_it_has():
    row = summarise(ROW, [part()] * 3, 5)
    assert (row.status, row.step, row.reason) == ("interrupted", "benchmark", "3 of 5 processes")
    assert row.metrics["speedup"] == 8
    assert summarise(ROW, [], 5) == ROW


@pytest.mark.parametrize("status", ["failed", "oom"])
def test_one_part_that_failed_decides_the_row(status):
    row = summarise(ROW, [part(), failed("no luck", status), part()], 3)
    assert (row.status, row.step, row.reason) == (status, "benchmark", "no luck")
    assert row.metrics == {}


def test_times_of_zero_divide_nothing_and_the_row_says_so():
    row = summarise(ROW, [part(0.0)], 1)
    assert row.metrics["speedup"] is None
    assert row.reason == "no usable pair of times: a clock read 0"
    assert row.metrics["step_speedup"] == 8


def test_selection_that_costs_more_than_it_saves_never_breaks_even():
    row = summarise(ROW, [part(7.5)], 1)
    assert row.metrics["break_even_steps"] is None
    assert "no-break-even" in row.flags


def test_a_launch_bound_arm_is_flagged_by_what_its_graph_saves():
    whole = part()
    wall = {"dense_wall_ms": [9.0], "sparse_wall_ms": [1.0]}
    graph = {"dense_graph_ms": [8.0], "sparse_graph_ms": [0.4]}
    timed = {**whole.samples, **wall, **graph}
    row = summarise(ROW, [replace(whole, samples=timed)], 1)
    assert "launch-bound" in row.flags
    assert (row.metrics["wall_speedup"], row.metrics["graph_speedup"]) == (9, 20)


def unstable(parts):
    flags = summarise(ROW, parts, len(parts)).flags
    return next((flag for flag in flags if flag.startswith("unstable")), None)


@pytest.mark.parametrize(
    ("parts", "flag"),
    [
        ([part()] * 2, None),
        ([part(again=8.1)] * 2, None),
        ([part(again=7.6)] * 2, "unstable: A/A 1.053"),
        ([part(1.0), part(1.2)], "unstable: processes spread by 20%"),
        ([part(facts={"minor_faults": 480.0})], "unstable: 480 minor faults a call"),
        ([part(facts={"foreign_load": 0.4})], "unstable: foreign load 40%"),
        ([part(facts={"foreign_load": 0.4}), part(), part()], "unstable: foreign load 40%"),
        ([part(facts={"clock_share": 0.6})], "unstable: clock at 60%"),
        (
            [part(dense_backend="math", sparse_backend="flash")],
            "unstable: dense ran math, sparse flash",
        ),
        (
            [part(again=7.6, facts={"minor_faults": 2.0})],
            "unstable: A/A 1.053; 2 minor faults a call",
        ),
    ],
)
def test_an_unstable_row_says_why(parts, flag):
    assert unstable(parts) == flag


def test_ratios_that_scatter_inside_a_process_are_unstable():
    whole = part()
    scattered = {**whole.samples, "sparse_selected_ms": [1.0, 2.0, 1.0, 2.0, 1.5, 1.5]}
    assert unstable([replace(whole, samples=scattered)]) == "unstable: ratio IQR 56%"


def test_quality_found_by_one_process_is_the_rows():
    row = summarise(ROW, [part(facts={"recall": 0.5}), part()], 2)
    assert row.metrics["recall"] == 0.5


def test_parts_survive_the_way_to_the_parent():
    found = part(flags=("gaussian",), dense_backend="flash")
    assert Part.from_json(found.to_json()) == found
