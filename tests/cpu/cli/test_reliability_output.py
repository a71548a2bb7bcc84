"""Whoever reads the output, wherever it goes: an exit code and at most one line, no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import topokv
from topokv import cli

ROOT = Path(topokv.__file__).parent.parent
RUN = '{"schema": "topokv-results", "schema_version": 1, "kind": "bench", "backend": "cpu", '
RUN += '"created": "2026-12-01", "rows": [%s]}'
ROW = '{"status": "ok", "workload": "µ→∞", "seq_len": %d, "selected_tokens": 8, "speedup": 2.0}'


@pytest.fixture
def results(tmp_path):
    rows = ", ".join(ROW % length for length in range(8, 1000))
    (tmp_path / "bench.json").write_text(RUN % rows, encoding="utf-8")
    return tmp_path


def topokv_report(results, *words, **options):
    arguments = [sys.executable, "-m", "topokv", "report", str(results), *words]
    options = {"stderr": subprocess.PIPE, "text": True, "cwd": ROOT} | options
    return subprocess.Popen(arguments, **options)


def test_a_reader_who_has_seen_enough_ends_the_command_quietly(results):
    with topokv_report(results, "--format", "csv", stdout=subprocess.PIPE) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_output_that_does_not_fit_is_one_line(results):
    with (
        Path("/dev/full").open("w") as full,
        topokv_report(results, "--output", str(results), stdout=full) as process,
    ):
        assert process.stderr.read().rstrip().endswith("no space left on device")
        assert process.wait() in (1, 2)
    assert (results / "bench.json").exists()


def test_letters_that_the_terminal_lacks_are_spelled_out(results):
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    with topokv_report(
        results, "--format", "csv", stdout=subprocess.PIPE, env=environment
    ) as process:
        out, error = process.communicate()
    assert (error, process.returncode) == ("", 0)
    assert r"\xb5\u2192\u221e" in out


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ModuleNotFoundError("No module named 'torch'"), 2, "No module named 'torch'"),
        (ValueError("two\nlines"), 2, "two lines"),
        (OSError(28, "No space left on device", "a\nb"), 2, "a?b: no space left on device"),
        (OSError(28, "No space left on device"), 2, "no space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_stops_a_command_is_one_line(error, code, line, monkeypatch, capsys):
    def fail(args):
        raise error

    monkeypatch.setattr("topokv.cli.report.run", fail)
    assert cli.main(["report"]) == code
    assert capsys.readouterr().err == f"topokv report: {line}\n"


@pytest.mark.parametrize("words", [[], ["nothing"], ["report", "--nothing"], ["report", "--sort"]])
def test_bad_words_are_one_line_that_names_the_help(words, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert error.startswith("topokv") and error.endswith(" --help\n") and error.count("\n") == 1


@pytest.mark.parametrize("name", ["new\nline.json", "\x1b[31mred.json", "undecodable\udcff.json"])
def test_a_file_with_an_odd_name_is_reported_under_a_plain_one(name, results, capsys):
    try:
        (results / name).write_text(RUN % (ROW % 4711))
    except (OSError, UnicodeError):
        pytest.skip("this file system refuses the name")
    (results / f"bad{name}").write_text("{")
    assert cli.main(["report", str(results), "--output", str(results)]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1 and "not JSON" in shown.err
    assert (shown.out + shown.err).replace("\n", "").isprintable()
    assert "4711" in (results / "comparison.csv").read_text(encoding="utf-8")
