from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

from topokv.report.columns import FIRST_FIVE
from topokv.report.formats import as_csv, as_json, as_markdown
from topokv.report.report import Request, build

FLAT = {
    *("backend", "device", "torch", "dtype", "workload", "seq_len", "selected_tokens"),
    *("selector", "status", "reason", "dense_sdpa_ms", "sparse_selected_ms", "speedup"),
    *("summary_ms", "score_ms", "step_speedup", "recall", "output_error", "gap_closed"),
    *("dense_backend", "sparse_backend", "flags"),
}
HOSTILE = "=1+1 | <script>alert(1)</script> **bold** `x` @someone #12 https://x.y [a](b) $x$"


def report_of(*paths, **asked):
    return build(Request(paths=paths, **asked))


def hostile(make, row):
    bad = replace(row("drift", 0), status="failed", reason=HOSTILE, selector=HOSTILE, metrics={})
    return make(rows=(bad, row("drift", 1)), environment={"device": HOSTILE, "fingerprint": "f"})


def test_json_is_flat_rows_with_null_where_nothing_applies(save, make):
    rows = json.loads(as_json.render(report_of(save("r.json", make()))))
    assert len(rows) == 28
    assert rows[0].keys() >= FLAT
    assert rows[0]["recall"] is None
    assert rows[0]["flags"] == ["gaussian", "no-scored-block"]
    assert rows[-1]["gap_closed"] == 1.0
    assert (rows[-1]["backend"], rows[-1]["seq_len"]) == ("cpu", 2048)


def test_the_first_five_fields_keep_their_names_and_places(save, make):
    report = report_of(save("r.json", make()))
    assert tuple(json.loads(as_json.render(report))[0])[:5] == FIRST_FIVE
    assert tuple(next(csv.reader(io.StringIO(as_csv.render(report)))))[:5] == FIRST_FIVE


def test_csv_and_json_hold_the_same_records(save, make):
    report = report_of(save("r.json", make()), save("s.json", make("cuda")))
    rows = json.loads(as_json.render(report))
    lines = list(csv.DictReader(io.StringIO(as_csv.render(report))))
    assert len(rows) == len(lines) == 56
    assert [float(line["speedup"]) for line in lines] == [row["speedup"] for row in rows]


def test_text_that_a_spreadsheet_would_run_is_quoted(save, make, row):
    text = as_csv.render(report_of(save("r.json", hostile(make, row))))
    (first, _) = csv.DictReader(io.StringIO(text))
    assert first["selector"] == f"'{HOSTILE}"
    assert first["device"] == f"'{HOSTILE}"
    assert first["reason"] == f"'{HOSTILE}"


def test_columns_choose_fields_and_their_order(save, make):
    text = as_csv.render(report_of(save("r.json", make()), columns=("selector", "seq_len")))
    assert text.splitlines()[:2] == ["selector,seq_len", "drift,16384"]


def test_hostile_text_cannot_break_markdown(save, make, row):
    text = as_markdown.render(report_of(save("r.json", hostile(make, row))))
    assert "<script" not in text
    assert r"=1+1 \| &lt;script&gt;alert(1)&lt;/script&gt; \*\*bold\*\* \`x\` @<!-- -->some" in text
    assert r"#<!-- -->12 https://<!-- -->x.y \[a\](b) \$x\$" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    bars = {line.replace(r"\|", "").count("|") for line in tables}
    assert len(bars) == 1


def test_markdown_text_at_a_lines_start_begins_nothing():
    assert as_markdown.escaped("# head") == r"\# head"
    assert as_markdown.escaped("- item") == r"\- item"
    assert as_markdown.escaped("1. item") == r"1\. item"
    assert as_markdown.escaped("--- rule") == r"\--- rule"
    assert as_markdown.escaped("_x_ a_b") == r"\_x\_ a_b"
    assert as_markdown.escaped("-3 % 5.00") == "-3 % 5.00"
    assert as_markdown.escaped("two\nlines") == "two lines"


def test_a_long_markdown_table_is_folded(save, make, row):
    rows = tuple(replace(row("drift", i % 4), seed=i) for i in range(80))
    text = as_markdown.render(report_of(save("r.json", make(rows=rows))))
    assert "<details><summary>80 rows</summary>\n\n| seq_len |" in text


def test_markdown_puts_machines_side_by_side(save, make):
    text = as_markdown.render(report_of(save("r.json", make()), save("s.json", make("cuda"))))
    assert "| seq_len | selected_tokens | dense_sdpa_ms (cpu) | sparse_selected_ms (cpu) |" in text
    assert "speedup (cuda)" in text
