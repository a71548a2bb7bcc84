from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from topokv.report.columns import COLUMNS
from topokv.results import Row, Run, read


def suite_run(**row):
    created = "2026-12-01T00:00:00+00:00"
    return Run(kind="tests", backend="rocm", created=created, rows=(Row(**row),))


def test_report_prints_a_table_and_leaves_markdown_csv_and_json(command, save, make, tmp_path):
    save("results/bench-cpu.json", make())
    code, out, err = command()
    assert (code, err) == (0, "")
    assert out.startswith("At 1,024 of 2,048 tokens use witness: it keeps 95.0 % of the attention")
    assert "\nBenchmark: gaussian (cpu)\n" in out
    left = {path.name for path in (tmp_path / "results").iterdir()}
    assert {"comparison.md", "comparison.csv", "comparison.json"} <= left


def test_reporting_twice_reads_the_same_files(command, save, make):
    save("results/bench-cpu.json", make())
    assert command() == command()


def test_format_prints_that_format_alone_and_writes_nothing(command, save, make, tmp_path):
    path = save("bench-cpu.json", make())
    code, out, err = command(path, "--format", "json")
    assert (code, err) == (0, "")
    assert len(json.loads(out)) == 28
    assert [p.name for p in tmp_path.iterdir()] == ["bench-cpu.json"]


def test_output_takes_the_file_of_a_format(command, save, make, tmp_path):
    path = save("bench-cpu.json", make())
    code, out, _ = command(path, "--format", "markdown", "--output", "table.md")
    assert (code, out) == (0, "")
    assert (tmp_path / "table.md").read_text().startswith("**At 1,024 of 2,048 tokens use wit")


@pytest.mark.parametrize(("status", "code"), [("failed", 1), ("skipped", 0)])
def test_exit_1_says_that_a_backend_failed_after_the_table_is_written(command, save, status, code):
    run = suite_run(status=status, step="verify", reason="wrong build")
    assert command(save("tests-rocm.json", run))[0] == code
    out = command("tests-rocm.json")[1]
    assert f"rocm: {status} at verify: wrong build" in out


def test_exit_1_says_that_a_row_failed(command, save, make, row):
    bad = replace(row("drift", 0), status="failed", reason="sparse differs from dense", metrics={})
    assert command(save("r.json", make(rows=(bad, row("drift", 1)))))[0] == 1


@pytest.mark.parametrize(("flags", "code"), [((), 0), (("--strict",), 1)])
def test_a_bad_file_beside_good_ones_fails_only_under_strict(command, save, make, flags, code):
    save("results/bench-cpu.json", make())
    save("results/odd.json", {"a": 1})
    found, out, err = command(*flags)
    assert found == code
    assert "Benchmark: gaussian" in out
    line = "not a results file: no field schema with value 'topokv-results'"
    assert err == f"topokv report: results/odd.json: {line}\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "results: no such file or folder"),
        (("none.json",), "none.json: no such file or folder"),
        (("good.json", "--where", "a=b"), "unknown column 'a'; expected one of 'seq_len', "),
        (("good.json", "--output", "good.json"), "good.json: file exists"),
    ],
)
def test_bad_input_is_one_line_and_exit_2_and_nothing_written(
    command, save, make, tmp_path, words, line
):
    save("good.json", make())
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"topokv report: {line}")
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["good.json"]


def test_a_report_never_loads_torch(save, make):
    path = save("r.json", make())
    code = (
        "import sys; from topokv.report import Request, build; from pathlib import Path;"
        "from topokv.report import FORMATS;"
        f"r = build(Request(paths=(Path({str(path)!r}),)));"
        "[f.render(r) for f in FORMATS]; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_without_the_extra_the_page_is_left_out_and_the_tables_are_not(
    command, save, make, monkeypatch, tmp_path, missing
):
    save("results/bench-cpu.json", make())
    monkeypatch.setitem(sys.modules, missing, None)
    code, out, err = command()
    assert code == 0
    assert "Benchmark: gaussian (cpu)" in out
    assert err.startswith("topokv report: report.html is left out: it needs ")
    assert err.endswith("which is not installed; pip install 'topokv[report]'\n")
    left = {path.name for path in (tmp_path / "results").iterdir()}
    assert left == {"bench-cpu.json", "comparison.md", "comparison.csv", "comparison.json"}


@pytest.mark.parametrize("words", [("--format", "html"), ("--format", "csv", "--plots", "plots")])
def test_asking_for_what_the_extra_makes_without_it_is_bad_input(
    command, save, make, monkeypatch, words
):
    path = save("bench-cpu.json", make())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = command(path, *words)
    assert (code, out) == (2, "")
    assert err.endswith("not installed; pip install 'topokv[report]'\n")
    assert err.count("\n") == 1


def test_every_metric_of_the_reference_runs_has_a_described_column():
    folder = Path(__file__).parents[3] / "results" / "reference"
    runs = [path for path in folder.glob("*.json") if not path.name.startswith("tests-")]
    rows = [row for path in runs for row in read(path).rows]
    known = {column.name for column in COLUMNS}
    assert {name for row in rows for name in row.metrics} - known == set()
