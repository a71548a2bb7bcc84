from __future__ import annotations

import json

import pytest

from topokv.report.github import LIMIT_BYTES, fitted


def test_the_summary_is_added_to_the_steps_file(command, save, make, monkeypatch, tmp_path):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    code, _, _ = command(save("r.json", make()), "--format", "json", "--github-summary")
    assert code == 0
    text = summary.read_text()
    assert text.startswith("before\n**At 1,024 of 2,048 tokens use witness")
    assert "### Benchmark: sample (cpu)" in text


def test_outside_github_the_summary_is_an_error(command, save, make, monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    code, _, err = command(save("r.json", make()), "--format", "json", "--github-summary")
    assert code == 2
    assert err == (
        "topokv report: GITHUB_STEP_SUMMARY is not set; --github-summary works in GitHub Actions "
        "only\n"
    )


def test_what_exceeds_githubs_limit_is_left_out_whole_and_counted():
    text = fitted(["first", "x" * LIMIT_BYTES, "last"], LIMIT_BYTES)
    assert text == (
        "first\n\nlast\n\n"
        "1 part is too long for this summary: see comparison.md among the artifacts.\n"
    )


def test_nothing_is_written_where_there_is_no_room():
    assert len(fitted(["first"], 0)) < 512


def test_benchmark_json_is_a_list_of_times_with_unique_names(command, save, make):
    paths = save("r.json", make()), save("s.json", make("cuda"))
    records = json.loads(command(*paths, "--format", "benchmark-json")[1])
    assert records[0]["unit"] == "ms"
    assert {"name", "unit", "value"} <= records[0].keys()
    assert len({record["name"] for record in records}) == len(records)
    assert pytest.approx(5.0) == records[0]["value"]
