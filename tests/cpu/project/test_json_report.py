"""What the report of a test run says of the place where it ran, and what it must not say."""

import json
import sys
import tempfile
from pathlib import Path

import torch


def report_of(config, longrepr):
    """A report with one failure, as the hook leaves it."""
    report = {
        "root": str(config.rootpath),
        "environment": {},
        "tests": [{"nodeid": "test_a.py::test_b", "call": {"longrepr": longrepr}}],
    }
    config.hook.pytest_json_modifyreport(json_report=report)
    return report


def test_report_names_backend_and_build(pytestconfig, monkeypatch):
    monkeypatch.setenv("TOPOKV_BACKEND", "rocm")
    told = report_of(pytestconfig, "")["topokv"]
    assert told["backend"] == "rocm"
    assert told["environment"]["torch"] == torch.__version__.partition("+")[0]
    assert told["environment"]["device"]


def test_backend_without_a_session_is_that_of_the_build(pytestconfig, monkeypatch):
    monkeypatch.delenv("TOPOKV_BACKEND", raising=False)
    expected = "rocm" if torch.version.hip else "cuda" if torch.version.cuda else "cpu"
    assert report_of(pytestconfig, "")["topokv"]["backend"] == expected


def test_report_holds_no_path_of_this_machine(pytestconfig):
    places = (pytestconfig.rootpath, Path.home(), Path(sys.prefix), Path(tempfile.gettempdir()))
    report = report_of(pytestconfig, " ".join(f"{place / 'x.py'}:1:" for place in places))
    text = json.dumps(report)
    assert [place for place in places if str(place) in text] == []
    assert report["root"] == "."


def test_a_path_below_the_checkout_stays_readable(pytestconfig):
    report = report_of(pytestconfig, f"{pytestconfig.rootpath}/tests/x.py:3: AssertionError")
    assert report["tests"][0]["call"]["longrepr"] == "./tests/x.py:3: AssertionError"
