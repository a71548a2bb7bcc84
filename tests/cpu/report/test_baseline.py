from __future__ import annotations

from dataclasses import replace

import pytest


def with_samples(run, factor=1.0):
    """The run with five processes' samples, its sparse arm slower by `factor`."""
    rows = []
    for row in run.rows:
        dense = row.metrics["dense_sdpa_ms"]
        wobble = [1 + 0.001 * process for process in range(5)]
        samples = {
            "dense_sdpa_ms": tuple((dense, dense) for _ in wobble),
            "sparse_selected_ms": tuple((w * factor, w * factor) for w in wobble),
        }
        rows.append(replace(row, samples=samples))
    return replace(run, rows=tuple(rows))


def lines_of(text):
    return [line.split() for line in text.splitlines() if line.startswith("  16384")]


@pytest.mark.parametrize(
    ("factor", "verdict", "change", "code"),
    [(1.0, "SAME", "+0.0", 0), (1.25, "SLOW", "-20.0", 1), (0.5, "FAST", "+100.0", 0)],
)
def test_each_row_gets_its_change_and_a_verdict(command, save, make, factor, verdict, change, code):
    base = save("base.json", with_samples(make()))
    new = save("new.json", with_samples(make(), factor))
    found, out, err = command(new, "--baseline", base, "--where", "selector!=random")
    assert found == code
    assert bool(err) is bool(code)
    cells = lines_of(out)[0]
    assert cells[cells.index("drift") + 1 :][1:4] == [change, "%", verdict]


def test_a_loss_within_fail_above_is_fine(command, save, make):
    base = save("base.json", with_samples(make()))
    new = save("new.json", with_samples(make(), 1.25))
    assert command(new, "--baseline", base, "--fail-above", "50")[0] == 0


def test_another_machine_gets_changes_and_a_line_but_no_verdict(command, save, make):
    base = save("base.json", with_samples(make(fingerprint="aaa")))
    new = save("new.json", with_samples(make(fingerprint="bbb"), 1.25))
    asked = "--columns", "selector,change,verdict", "--format", "markdown"
    code, out, _ = command(new, "--baseline", base, *asked)
    assert code == 0
    assert "SLOW" not in out
    assert "-20.0 %" in out
    line = f"{new}: no verdicts, {base} is of another machine or build (fingerprints aaa and bbb)"
    assert line in out


def test_a_row_that_cannot_be_judged_says_why(command, save, make):
    run = with_samples(make())
    bad = replace(run.rows[0], status="oom", step="benchmark", reason="full", metrics={})
    base = save("base.json", replace(run, rows=(bad, *run.rows[1:])))
    out = command(save("new.json", run), "--baseline", base)[1]
    assert "no verdict: base is oom: full" in out


def test_a_baseline_without_a_common_row_is_bad_input(command, save, make, row):
    base = save("base.json", make(rows=(replace(row("drift", 0), seq_len=7),)))
    new = save("new.json", make())
    code, out, err = command(new, "--baseline", base)
    assert (code, out) == (2, "")
    assert err.startswith(f"topokv report: no row can be compared with {base}: {new}: not compared")
