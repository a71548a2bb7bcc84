from __future__ import annotations

import pytest

from topokv.report.pytest_json import looks_like, suite
from topokv.results import ResultFileError

SKIP = {"outcome": "skipped", "longrepr": "('/x/test_a.py', 4, 'Skipped: no device: because')"}
CRASH = {"outcome": "failed", "crash": {"message": "AssertionError: one | two\nassert 1 == 2"}}
OK = {"outcome": "passed"}
TESTS = {
    "passed": {"nodeid": "a.py::test_ok", "outcome": "passed", "setup": OK, "call": OK},
    "failed": {"nodeid": "a.py::test_bad", "outcome": "failed", "setup": OK, "call": CRASH},
    "error": {"nodeid": "a.py::test_err", "outcome": "error", "setup": CRASH},
    "skipped": {"nodeid": "a.py::test_skip", "outcome": "skipped", "setup": SKIP},
}
BROKEN_IMPORT = {
    "nodeid": "b.py",
    "outcome": "failed",
    "longrepr": "ImportError while importing\n\x1b[31mE   ModuleNotFoundError: no x\x1b[0m\n",
}


def report(*outcomes, exitcode=0, collectors=(), **changes):
    tests = [TESTS[outcome] for outcome in outcomes]
    summary = {outcome: outcomes.count(outcome) for outcome in outcomes}
    fields = {"created": 1.8e9, "duration": 2.5, "exitcode": exitcode, "summary": summary}
    return fields | {"tests": tests, "collectors": list(collectors)} | changes


def test_counts_failures_and_skips_come_with_their_reasons():
    data = report("passed", "failed", "error", "skipped", exitcode=1)
    found = suite(data, "tests-cpu.json")
    assert (found.passed, found.failed, found.skipped) == (1, 2, 1)
    assert [(f.step, f.where, f.message) for f in found.failures] == [
        ("test", "a.py::test_bad", "AssertionError: one | two"),
        ("test", "a.py::test_err", "AssertionError: one | two"),
    ]
    assert found.skips == (("no device: because", 1),)
    assert (found.status, found.step, found.reason) == (
        "failed",
        "test",
        "AssertionError: one | two",
    )


def test_an_import_error_is_a_failure_at_collection_with_its_last_line():
    found = suite(report("passed", exitcode=2, collectors=[BROKEN_IMPORT]), "tests-cpu.json")
    (failure,) = found.failures
    assert (failure.step, failure.where) == ("collect", "b.py")
    assert failure.message == "ModuleNotFoundError: no x"
    assert found.status == "failed"


def test_a_skip_of_a_whole_module_counts():
    module = {"nodeid": "c.py", **SKIP}
    found = suite(report("passed", collectors=[module]), "tests-cpu.json")
    assert found.skipped == 1
    assert found.status == "ok"


def test_only_skips_is_a_skipped_suite_with_the_reason():
    found = suite(report("skipped", "skipped"), "tests-cuda.json")
    assert (found.status, found.reason) == ("skipped", "no device: because")
    assert found.run.backend == "cuda"


@pytest.mark.parametrize(
    ("exitcode", "status", "reason"),
    [
        (0, "ok", None),
        (2, "interrupted", "pytest was interrupted"),
        (3, "failed", "pytest exited with 3"),
    ],
)
def test_the_exit_code_decides_where_no_test_failed(exitcode, status, reason):
    found = suite(report("passed", exitcode=exitcode), "tests-cpu.json")
    assert (found.status, found.reason) == (status, reason)


def test_what_the_session_says_of_itself_is_read():
    own = {
        "backend": "rocm",
        "status": "failed",
        "step": "verify",
        "reason": "torch has no hip\nmore",
        "environment": {"torch": "2.13.0", "device": "AMD"},
    }
    found = suite(report("passed", topokv=own), "tests.json")
    assert found.run.backend == "rocm"
    assert found.run.environment["device"] == "AMD"
    assert (found.status, found.step, found.reason) == ("failed", "verify", "torch has no hip")


def test_a_file_of_another_shape_is_refused_in_one_line():
    data = {"exitcode": 0, "summary": {}, "tests": 3}
    assert looks_like(data)
    with pytest.raises(ResultFileError, match=r"^t\.json: not a pytest-json-report file \(TypeErr"):
        suite(data, "t.json")


def test_a_results_file_does_not_look_like_one():
    assert not looks_like({"schema": "topokv-results", "summary": 1, "exitcode": 0})
