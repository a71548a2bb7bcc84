"""`topokv compare`: verdicts, what is refused, and exit codes."""

import argparse
from dataclasses import replace

import pytest

from topokv.cli import compare as command
from topokv.cli import main
from topokv.results import Row, Run, compare
from topokv.results.codec import write
from topokv.results.comparison import speedups_of

NOISE = (1.0, 1.004, 0.996, 1.002, 0.998)


def row(speedup=4.0, *, selector="witness", processes=NOISE, **fields):
    dense = tuple((8.0, 8.0, 8.0) for _ in processes)
    sparse = tuple((8.0 / speedup / noise,) * 3 for noise in processes)
    return Row(
        workload="gaussian",
        seq_len=16384,
        selected_tokens=1024,
        selector=selector,
        attention="gather",
        metrics={"speedup": speedup},
        samples={"dense_sdpa_ms": dense, "sparse_selected_ms": sparse},
        **fields,
    )


def run(*rows, fingerprint="aaaaaaaaaaaa", kind="bench"):
    environment = {} if fingerprint is None else {"fingerprint": fingerprint}
    return Run(kind=kind, backend="cpu", created="2026-01-01", environment=environment, rows=rows)


def files(tmp_path, base, new):
    for name, content in (("base.json", base), ("new.json", new)):
        write(tmp_path / name, content)
    return [str(tmp_path / "base.json"), str(tmp_path / "new.json")]


def test_speedups_are_those_of_the_processes():
    assert speedups_of(row(4.0, processes=(1.0, 1.1))) == pytest.approx([4.0, 4.4])


@pytest.mark.parametrize(
    ("by", "name"), [(1.1, "FAST"), (1 / 1.1, "SLOW"), (1.0, "SAME"), (1 / 1.03, "????")]
)
def test_verdicts(by, name):
    noisy = tuple(value**4 for value in NOISE)
    found = compare(run(row(4.0, processes=noisy)), run(row(4.0 * by, processes=noisy)))
    assert [compared.name for compared in found.compared] == [name]


def test_one_process_cannot_tell():
    found = compare(run(row(4.0, processes=(1.0,))), run(row(1.0, processes=(1.0,))))
    assert found.compared[0].name == "????"


@pytest.mark.parametrize("prints", [("a" * 12, "b" * 12), (None, "b" * 12), (None, None)])
def test_runs_of_different_or_unknown_machines_are_refused(prints):
    base, new = (run(row(), fingerprint=fingerprint) for fingerprint in prints)
    with pytest.raises(ValueError, match=r"^base and new come from different machines or builds"):
        compare(base, new)
    found = compare(base, new, across_machines=True).compared[0]
    assert (found.base, found.new, found.verdict) == (
        pytest.approx(4, rel=0.01),
        pytest.approx(4, rel=0.01),
        None,
    )


def test_what_is_no_benchmark_or_shares_nothing_is_refused():
    with pytest.raises(
        ValueError, match=r"^new must be a run of `topokv bench`, got kind 'quality'$"
    ):
        compare(run(row()), run(row(), kind="quality"))
    with pytest.raises(ValueError, match=r"^base and new have no row in common"):
        compare(run(row()), run(row(selector="drift")))


def test_rows_of_one_run_alone_are_named_and_unfinished_ones_not_judged():
    base = run(row(), row(selector="drift"), row(selector="quest"))
    unfinished = replace(row(selector="quest"), status="oom", reason="no room")
    found = compare(base, run(row(), row(selector="oracle"), unfinished))
    assert [only.selector for only in found.only_base] == ["drift"]
    assert [only.selector for only in found.only_new] == ["oracle"]
    assert [compared.why_not for compared in found.compared] == [None, "new is oom: no room"]


def test_a_published_row_without_samples_shows_its_speedup():
    published = replace(row(5.0), samples={})
    found = compare(run(published, fingerprint=None), run(row()), across_machines=True)
    assert found.compared[0].base == 5.0


@pytest.mark.parametrize(
    ("by", "above", "code"),
    [(1 / 1.1, "5", 1), (1 / 1.1, "20", 0), (1.0, "0", 0), (1.1, "0", 0), (0.97, "5", 0)],
)
def test_exit_code_is_one_only_when_all_of_the_interval_lies_beyond(
    tmp_path, capsys, by, above, code
):
    paths = files(tmp_path, run(row()), run(row(4.0 * by)))
    assert main(["compare", *paths, "--fail-above", above]) == code
    assert ("slower by more than" in capsys.readouterr().out) is bool(code)


def test_bad_input_gets_one_line_and_exit_two(tmp_path, capsys):
    paths = files(tmp_path, run(row()), run(row(), fingerprint="b" * 12))
    assert main(["compare", *paths]) == 2
    assert main(["compare", *paths, "--fail-above", "100"]) == 2
    assert main(["compare", paths[0], str(tmp_path / "none.json")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[1] == ("topokv compare: fail_above must be 0 or more and below 100, got 100")


def test_the_table_reads(tmp_path, capsys):
    paths = files(tmp_path, run(row()), run(row(4.4), row(selector="drift")))
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(paths)) == 0
    out = capsys.readouterr().out
    assert "1024 of 16384" in out
    assert "+10.0%" in out
    assert "FAST" in out
    assert "only in NEW: gaussian, 1024 of 16384 tokens, drift" in out
