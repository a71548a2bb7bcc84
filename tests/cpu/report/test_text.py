from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from topokv.report.columns import FIRST_FIVE
from topokv.report.formats.as_text import render
from topokv.report.report import Request, build
from topokv.results import Row, Run


def text_of(*paths: Path, width: int = 120, **asked) -> str:
    return render(build(Request(paths=paths, **asked)), width)


def header(text: str, after: str = "seq_len") -> list[str]:
    return next(line.split() for line in text.splitlines() if line.lstrip().startswith(after))


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_the_first_five_keep_their_names(save, make, width):
    text = text_of(save("r.json", make()), save("s.json", make("cuda")), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert tuple(header(text)[:5]) == FIRST_FIVE


def test_recall_stands_beside_speedup_at_80_columns(save, make):
    text = text_of(save("r.json", make()), width=80)
    sample = text[text.index("Benchmark: sample") :]
    assert header(sample)[4:6] == ["speedup", "recall"]
    assert "selector witness:" in sample


def test_machines_stand_side_by_side_with_a_legend(save, make):
    text = text_of(save("r.json", make()), save("s.json", make("cuda")))
    row = next(line for line in text.splitlines() if "1024" in line and "witness" in line)
    assert " ".join(row.split()) == "16384 1024 5.00 0.831 6.02x witness 1.76x 5.89–6.14 4.98x"
    assert "cuda: NVIDIA Example 24 GB, torch 2.13.0+cu130, fingerprint cuda01234567" in text


def test_machines_that_do_not_fit_side_by_side_follow_each_other(save, make):
    paths = [save(f"{i}.json", make("cuda", fingerprint=f"f{i}")) for i in range(9)]
    text = text_of(*paths)
    assert text.count("Benchmark: gaussian (cuda ") == 9
    assert max(map(len, text.splitlines())) <= 120


def test_long_gives_each_machine_a_table(save, make):
    text = text_of(save("r.json", make()), save("s.json", make("cuda")), long=True)
    titles = [line for line in text.splitlines() if line.startswith("Benchmark")]
    assert titles == [
        "Benchmark: gaussian (cpu)",
        "Benchmark: sample (cpu)",
        "Benchmark: gaussian (cuda)",
        "Benchmark: sample (cuda)",
    ]


def test_rows_that_did_not_finish_stay_with_their_reason(save, make, row):
    rows = [
        replace(row("drift", 0), status="oom", step="benchmark", reason="no memory", metrics={}),
        replace(row("drift", 1), status="interrupted", reason=None, metrics={}),
        row("drift", 2),
    ]
    text = text_of(save("r.json", make(rows=tuple(rows))))
    cells = [line.split() for line in text.splitlines() if line.startswith("  16384")]
    assert [line[2] for line in cells] == ["oom", "interrupted", "5.00"]
    assert "1. oom at benchmark: no memory" in text
    assert "3. interrupted: no reason recorded" in text


def test_a_budget_without_a_scored_block_says_so(save, make):
    text = text_of(save("r.json", make()))
    assert "no-scored-block: sinks and the newest blocks fill this budget" in text


def test_gaussian_keys_say_that_quality_means_nothing(save, make):
    assert "random keys: recall and error mean nothing here" in text_of(save("r.json", make()))


def test_what_does_not_fit_is_named(save, make):
    text = text_of(save("r.json", make()), width=100)
    assert "not in this width, see --wide: step_speedup, interval, gap_closed" in text


def test_wide_shows_every_filled_column(save, make):
    names = header(text_of(save("r.json", make()), wide=True))
    assert {"summary_ms", "score_ms", "copy_share", "dense_backend", "status"} <= set(names)
    assert "peak_memory_bytes" not in names


def test_a_metric_that_no_column_describes_is_shown_by_wide(save, make, row):
    new = replace(row("drift", 0), metrics={"brand_new": 1.5})
    assert "brand_new" in text_of(save("r.json", make(rows=(new,))), wide=True)


def test_two_dtypes_of_one_machine_are_two_groups(save, make, row):
    rows = (row("drift", 0), replace(row("drift", 0), dtype="bfloat16"))
    text = text_of(save("r.json", make(rows=rows)))
    assert "cpu bfloat16" in text
    assert "cpu float32" in text
    assert len([line for line in text.splitlines() if line.startswith("  16384")]) == 1


def test_published_figures_are_marked(save, make):
    path = save("p.json", make("cuda", provenance="published"))
    text = text_of(path, width=140)
    assert "cuda published: NVIDIA Example 24 GB" in text
    assert "published figures, not measured by topokv" in text


def test_where_keeps_rows_and_says_how_many_it_left_out(save, make):
    text = text_of(save("r.json", make()), where=("selector=witness", "selected_tokens>=512"))
    assert "24 rows left out by --where" in text
    assert len([line for line in text.splitlines() if line.startswith(("  16384", "   2048"))]) == 4


def test_columns_are_those_asked_in_that_order(save, make):
    text = text_of(save("r.json", make()), columns=("selector", "speedup", "seq_len"))
    assert header(text, "selector")[:3] == ["selector", "speedup", "seq_len"]


def test_sort_puts_the_largest_first_and_empty_last(save, make, row):
    rows = (replace(row("drift", 2), metrics={}), row("drift", 1), row("drift", 0))
    path = save("r.json", make(rows=rows))
    text = text_of(path, sort=("-speedup",))
    budgets = [line.split()[1] for line in text.splitlines() if line.startswith("  16384")]
    assert budgets == ["128", "256", "512"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"columns": ("sped",)}, "unknown column 'sped'; expected one of 'seq_len', "),
        ({"sort": ("-sped",)}, "unknown column 'sped'; expected one of 'seq_len', "),
        ({"where": ("selector",)}, "cannot read the condition 'selector'; write COLUMN=VALUE"),
        ({"where": ("speedup>x",)}, "the condition 'speedup>x' needs a number, got 'x'"),
    ],
)
def test_a_request_that_makes_no_sense_is_named(save, make, asked, message):
    path = save("r.json", make())
    with pytest.raises(ValueError, match=f"^{message}"):
        text_of(path, **asked)


@pytest.mark.parametrize(("width", "told"), [(200, True), (80, False)])
def test_a_narrow_table_of_tests_leaves_the_device_to_the_legend(save, width, told):
    row = Row(status="skipped", step="probe", reason="no device " * 20)
    environment = {"device": "Some Very Long Name of a Device " * 3, "torch": "2.13.0"}
    created = "2026-12-01T00:00:00+00:00"
    run = Run(kind="tests", backend="cuda", created=created, environment=environment, rows=(row,))
    text = text_of(save("t.json", run), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert ("device" in header(text, "what")) is told
    assert "cuda: Some Very Long Name of a Device" in text


def test_a_seed_alone_parts_rows_of_one_machine_but_not_machines(save, make, row):
    one = save("a.json", make(rows=(row("drift", 0),)))
    other = replace(row("drift", 0), seed=None)
    published = save("b.json", make("cuda", rows=(other,), provenance="published"))
    both = save("c.json", make(rows=(row("drift", 0), replace(row("drift", 0), seed=1))))

    def lines(*paths):
        return [line for line in text_of(*paths).splitlines() if line.startswith("  16384")]

    assert len(lines(one, published)) == 1
    assert len(lines(both)) == 2
    assert "seed" in header(text_of(both))


def test_quality_rows_show_what_is_kept_and_how_each_is_judged(save, make, row):
    kept = {"recall": 0.9, "gap_closed": 0.8}
    flags = ("better than random", "cannot tell from streaming")
    rows = (replace(row("drift", 3, real=True), metrics=kept, flags=flags),)
    text = text_of(save("q.json", make(kind="quality", rows=rows)))
    assert header(text) == ["seq_len", "selected_tokens", "recall", "gap_closed", "judged"]
    assert "better than random, cannot tell from streaming" in text


def test_dense_against_dense_is_told_under_each_table(save, make):
    run = make()
    ratios = iter([0.997, 1.004, *[1.0] * len(run.rows)])
    rows = [replace(r, metrics={**r.metrics, "aa_ratio": next(ratios)}) for r in run.rows]
    text = text_of(save("r.json", replace(run, rows=tuple(rows))), width=200)
    assert "A/A, dense over dense in the same rounds: 0.997 to 1.004 (quiet: 1 ± 0.02)" in text
    assert "A/A, dense over dense in the same rounds: 1.000 (quiet: 1 ± 0.02)" in text
