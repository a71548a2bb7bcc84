from __future__ import annotations

from dataclasses import replace

import pytest

from topokv.report.entries import Entry, machine_of
from topokv.report.findings import answer, choose, gains, headline_tokens, sentences, worth

LOW_HIGH = {"gap_closed_low": None, "gap_closed_high": None}


def entries_of(run, keep=lambda row: True):
    head = replace(run, rows=())
    machine = machine_of(run)
    return [
        Entry(row=row, run=head, machine=machine, source="r.json") for row in run.rows if keep(row)
    ]


def changed(entry, **metrics):
    row = replace(entry.row, metrics=dict(entry.row.metrics) | metrics)
    return replace(entry, row=row)


def test_the_selector_that_keeps_most_is_named_with_how_sure_that_is(make):
    choice = choose(entries_of(make()))
    assert choice is not None
    assert (choice.selector, choice.tokens, choice.sureness) == ("witness", 1024, "clear")
    assert answer(choice) == (
        "At 1,024 of 2,048 tokens use witness: it keeps 95.0 % of the attention, 93.3 % of the way "
        "from random choice to the oracle.",
        "First in 1 of 1 setting (sample); streaming is next and keeps 85.0 %; their 95 % "
        "intervals never touch.",
    )


def test_the_ends_of_the_scale_are_never_recommended(make):
    entries = entries_of(make(), lambda row: row.selector in ("random", "oracle", "drift"))
    assert choose(entries).selector == "drift"


def test_overlapping_intervals_make_it_likely_and_no_intervals_too(make):
    entries = entries_of(make())
    wide = [changed(e, gap_closed_low=0.0, gap_closed_high=1.0) for e in entries]
    none = [changed(e, **LOW_HIGH) for e in entries]
    assert choose(wide).sureness == "likely"
    assert choose(none).sureness == "likely"
    assert answer(choose(none))[1].endswith("no intervals were measured.")


def test_a_selector_that_loses_a_setting_is_not_surely_best(make):
    entries = entries_of(make(), lambda row: row.workload == "sample")
    other = [replace(e, row=replace(e.row, workload="other")) for e in entries]
    beaten = [changed(e, recall=0.96) if e.row.selector == "streaming" else e for e in other]
    choice = choose([*entries, *beaten])
    assert (choice.selector, choice.num_won, choice.num_settings) == ("witness", 1, 2)
    assert choice.sureness == "cannot tell"
    assert "no selector is surely best; most kept witness" in answer(choice)[0]


def test_one_selector_alone_is_not_sure(make):
    choice = choose(entries_of(make(), lambda row: row.selector == "witness"))
    assert choice.sureness == "cannot tell"
    assert answer(choice)[1] == "No other selector was measured beside it."


def test_quality_runs_are_better_evidence_than_a_benchmarks_one_query(make):
    bench = entries_of(make())
    quality = [changed(e, recall=0.99) for e in bench if e.row.selector in ("drift", "streaming")]
    quality = [replace(e, run=replace(e.run, kind="quality")) for e in quality]
    assert choose([*bench, *quality]).selector == "drift"


def test_gaussian_keys_recommend_nothing(make):
    entries = entries_of(make(), lambda row: row.workload == "gaussian")
    assert choose(entries) is None
    assert sentences(entries, {entries[0].machine: "cpu"})[0] == (
        "No run on a real model's cache is here, so no selector can be recommended."
    )


def test_a_budget_without_a_scored_block_recommends_nothing(make):
    entries = entries_of(make(), lambda row: row.selected_tokens == 128)
    assert choose(entries) is None


@pytest.mark.parametrize(
    ("budgets", "tokens"), [((128, 1024, 2048), 1024), ((128, 512), 512), ((2048,), 2048)]
)
def test_the_headline_budget_is_1024_or_the_next_below(make, row, budgets, tokens):
    rows = tuple(replace(row("drift", 0), selected_tokens=budget) for budget in budgets)
    assert headline_tokens(entries_of(make(rows=rows))) == tokens


def test_a_gain_is_told_with_its_interval_and_its_doubt(make):
    entries = entries_of(make(), lambda row: row.workload == "gaussian")
    (gain,) = gains(entries, ["drift"], 1024)
    doubtful = replace(gain, row=replace(gain.row, flags=("unstable: A/A 1.04",)))
    (line,) = sentences([doubtful], {gain.machine: "cpu"})[1:]
    assert line == (
        "On cpu, gaussian, float32, drift: attending 1,024 of 16,384 tokens is 6.02 times as fast "
        "as dense (95 % interval 5.89–6.14 over 5 processes), 3.73 with choosing them counted. "
        "Beware: unstable: A/A 1.04."
    )


@pytest.mark.parametrize(
    ("speedup", "step", "said"),
    [
        (4.0, 2.0, "yes"),
        (4.0, 0.5, "no, choosing costs more than it saves"),
        (0.5, 0.4, "no"),
        (4.0, 1.01, "no difference"),
        (4.0, None, "cannot tell"),
    ],
)
def test_worth_is_what_a_whole_step_gains(make, speedup, step, said):
    entry = changed(entries_of(make())[0], speedup=speedup, step_speedup=step)
    assert worth(entry) == said


def test_a_gain_takes_the_best_selector_that_was_measured_there(make):
    found = gains(entries_of(make()), ["streaming", "witness"], 1024)
    assert [(e.row.workload, e.row.selector) for e in found] == [
        ("gaussian", "witness"),
        ("sample", "streaming"),
    ]


def test_a_selector_tried_in_one_of_many_settings_does_not_hide_the_others(make):
    sample = entries_of(make(), lambda row: row.workload == "sample")
    layers = [replace(e, row=replace(e.row, layer=i)) for i in range(4) for e in sample]
    odd = [changed(e, recall=1.0) for e in layers if e.row.layer == 0 and e.row.selector == "drift"]
    once = [replace(e, row=replace(e.row, selector="new")) for e in odd]
    choice = choose([*layers, *once])
    assert (choice.selector, choice.num_settings) == ("witness", 4)


def test_a_setting_that_a_run_cut_short_left_half_done_is_left_out(make):
    sample = entries_of(make(), lambda row: row.workload == "sample")
    layers = [replace(e, row=replace(e.row, layer=i)) for i in range(3) for e in sample]
    whole = [e for e in layers if e.row.layer != 2 or e.row.selector == "drift"]
    choice = choose(whole)
    assert (choice.selector, choice.num_settings) == ("witness", 2)


def test_a_budget_of_the_whole_context_is_no_evidence(make):
    entries = entries_of(make(), lambda row: row.workload == "sample")
    assert (
        choose([replace(e, row=replace(e.row, seq_len=e.row.selected_tokens)) for e in entries])
        is None
    )
