from __future__ import annotations

from dataclasses import replace

import pytest

from topokv.report.sources import collect, find
from topokv.results import ResultFileError, Row, Run


def test_a_folder_stands_for_its_files_and_those_below(save, make, tmp_path):
    save("results/bench-cpu.json", make("cpu"))
    save("results/machine/bench-cuda.json", make("cuda"))
    names = [path.name for path in find([tmp_path / "results"])]
    assert sorted(names) == ["bench-cpu.json", "bench-cuda.json"]


def test_a_folder_leaves_out_reference_runs_hidden_files_and_the_report_itself(save, tmp_path):
    for name in ("reference/a.json", "comparison.json", ".b.json", ".cache/c.json", "bench.json"):
        save(f"results/{name}", {})
    assert [path.name for path in find([tmp_path / "results"])] == ["bench.json"]
    assert [p.name for p in find([tmp_path / "results" / "reference"])] == ["a.json"]


def test_a_file_named_twice_is_read_once(save, make, tmp_path):
    path = save("results/bench-cpu.json", make())
    assert find([path, tmp_path / "results"]) == [path]


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(ResultFileError, match=r"^.*: no result files; `topokv bench` leaves one "):
        collect([tmp_path])


def test_of_one_machine_the_newest_run_wins_with_a_line(save, make):
    new = save("a.json", make(created="2026-12-02T00:00:00+00:00"))
    old = save("b.json", make(created="2026-12-01T23:00:00-00:30"))
    found = collect([old, new])
    assert {entry.source for entry in found.entries} == {str(new)}
    assert found.passed_over == (
        f"{old}: 28 results passed over for newer ones of the same machine in {new}",
    )


def test_rows_that_only_the_older_run_measured_are_kept(save, make):
    run = make(created="2026-12-02T00:00:00+00:00")
    new = save("new.json", replace(run, rows=run.rows[:1]))
    old = save("old.json", make())
    assert len(collect([old, new]).entries) == len(run.rows)


def test_two_machines_of_one_backend_are_both_kept(save, make):
    one, two = save("1.json", make(fingerprint="aa")), save("2.json", make(fingerprint="bb"))
    found = collect([one, two])
    assert len({entry.machine for entry in found.entries}) == 2
    assert found.passed_over == ()


def test_a_bad_file_beside_good_ones_costs_one_line(save, make, tmp_path):
    good = save("good.json", make())
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    found = collect([good, bad])
    assert len(found.entries) == 28
    (line,) = found.refused
    assert line.startswith(f"{bad}: not JSON: ")


def test_a_bad_number_is_refused_with_the_path_to_its_field(save, make):
    path = save("bench-cuda.json", make())
    path.write_text(path.read_text().replace('"speedup": ', '"speedup": "fast", "x": ', 1))
    with pytest.raises(ResultFileError) as caught:
        collect([path])
    assert str(caught.value) == f"{path}: rows[0].speedup: expected a number, got 'fast'"


def test_a_bare_nan_is_refused_with_the_path_to_its_field(save, make):
    path = save("bench.json", make())
    path.write_text(path.read_text().replace('"speedup": ', '"speedup": NaN, "x": ', 1))
    with pytest.raises(ResultFileError) as caught:
        collect([path])
    assert str(caught.value) == f"{path}: rows[0].speedup: expected a finite number, got nan"


@pytest.mark.parametrize("version", [0, 2])
def test_another_schema_version_is_refused_by_its_number(save, version):
    path = save("r.json", {"schema": "topokv-results", "schema_version": version})
    message = f"{path}: schema_version: this topokv reads version 1, the file has version {version}"
    with pytest.raises(ResultFileError) as caught:
        collect([path])
    assert str(caught.value) == message


def test_tests_that_never_ran_are_a_suite_with_step_and_reason(save):
    row = Row(status="skipped", step="probe", reason="no /dev/kfd")
    run = Run(kind="tests", backend="rocm", created="2026-12-01T00:00:00+00:00", rows=(row,))
    (suite,) = collect([save("tests-rocm.json", run)]).suites
    assert (suite.status, suite.step, suite.reason) == ("skipped", "probe", "no /dev/kfd")


def test_order_is_cpu_cuda_rocm_then_published(save, make):
    paths = [
        save("1.json", make("cuda", provenance="published", fingerprint="zz")),
        save("2.json", make("rocm")),
        save("3.json", make("cuda")),
        save("4.json", make("cpu")),
    ]
    machines = dict.fromkeys(entry.machine for entry in collect(paths).entries)
    assert [(key[0], key[3]) for key in machines] == [
        ("cpu", "measured"),
        ("cuda", "measured"),
        ("rocm", "measured"),
        ("cuda", "published"),
    ]


def test_suites_under_two_versions_of_python_are_both_kept(save):
    def report(python):
        own = {"backend": "cpu", "environment": {"fingerprint": "ff", "python": python}}
        test = {"nodeid": "a.py::test_a", "outcome": "passed"}
        fields = {"created": 1.8e9, "exitcode": 0, "summary": {"passed": 1}, "tests": [test]}
        return fields | {"topokv": own}

    paths = [save(f"{python}/tests-cpu.json", report(python)) for python in ("3.11", "3.13")]
    found = collect(paths)
    assert len(found.suites) == 2
    assert found.passed_over == ()
