"""Result files that a stranger sends: refused or reported, and nothing in them acts on its own."""

import contextlib
import copy
import csv
import io
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topokv import cli
from topokv.report import format_names

ROW = {
    "workload": "sample",
    "layer": 12,
    "dtype": "float32",
    "seq_len": 2048,
    "selected_tokens": 256,
    "selector": "drift",
    "attention": "gather",
    "status": "ok",
    "flags": ["unstable: A/A 1.2"],
    "speedup": 2.0,
    "speedup_low": 1.9,
    "recall": 0.5,
    "samples": {"dense_sdpa_ms": [[1.0, 2.0]]},
}
BENCH = {
    "schema": "topokv-results",
    "schema_version": 1,
    "kind": "bench",
    "backend": "cpu",
    "created": "2026-12-01T10:00:00+00:00",
    "provenance": "measured",
    "command": ["topokv", "bench"],
    "environment": {"device": "a CPU", "torch": "2.13.0", "fingerprint": "0123456789ab"},
    "settings": {"rounds": 3},
    "rows": [ROW, ROW | {"selector": "witness", "status": "failed", "reason": "it broke"}],
}
TESTS = {
    "created": 1796119200.0,
    "duration": 2.5,
    "exitcode": 1,
    "summary": {"passed": 1, "failed": 1, "total": 2, "collected": 2},
    "collectors": [{"nodeid": "a.py", "outcome": "failed", "longrepr": "E   no such module"}],
    "tests": [
        {"nodeid": "b.py::x", "outcome": "failed", "call": {"outcome": "failed", "longrepr": "E"}},
        {
            "nodeid": "b.py::y",
            "outcome": "skipped",
            "setup": {"outcome": "skipped", "longrepr": "('b.py', 1, 'Skipped: no GPU')"},
        },
    ],
    "topokv": {"backend": "cuda", "environment": {"torch": "2.13.0", "device": "a GPU"}},
}
HOSTILE = [
    "\x1b]0;title\x07\x1b[31mred",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a | b `c` **d** [e](http://example.org) @someone",
    "=HYPERLINK(1)",
    "line\nbreak\r\u2028\u0085",
    "\u202egnp.exe",
    "\ud800",
    "x" * 5000,
    "('" * 300,
    "",
]
VALUES = st.one_of(
    st.sampled_from(HOSTILE),
    st.sampled_from([None, True, -1, 0, 1, 2**63, 10**400, 1e308, 5e-324, -2.5, [], {}, [[]]]),
    st.sampled_from([float("nan"), float("inf"), {"a": {"b": [1]}}, ["a", "b"]]),
)


def places(value, path=()):
    """The path to every value within a JSON value."""
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            yield from places(item, (*path, name))


@st.composite
def tampered(draw, original):
    """`original` with up to four of its values replaced, removed or joined by another."""
    data = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, 4))):
        *way, last = draw(st.sampled_from([p for p in places(data) if p]))
        holder = data
        for name in way:
            holder = holder[name]
        if draw(st.integers(0, 4)) == 0:
            del holder[last]
        elif isinstance(holder, dict) and draw(st.integers(0, 4)) == 0:
            holder[draw(st.sampled_from(HOSTILE))] = copy.deepcopy(draw(VALUES))
        else:
            holder[last] = copy.deepcopy(draw(VALUES))
        if not [p for p in places(data) if p]:
            break
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sent")
    good = BENCH | {"environment": {"device": "the good machine", "fingerprint": "f"}}
    (folder / "good.json").write_text(json.dumps(good))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("topokv.report.plots.draw.inline_svg", lambda figure: "<svg/>")
        yield folder


def said_by(*words):
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = cli.main([*map(str, words)])
    return code, out.getvalue(), errors.getvalue()


def assert_harmless(form, text):
    """Nothing in `text` that a terminal, a page or a spreadsheet would act on."""
    assert "".join(text.split("\n")).isprintable()
    if form == "html":
        assert not re.search(r"<script>alert|<img", text)
    if form == "markdown":
        assert not re.search(r"<script|<img|(?<!\\)\[e\]|@someone", text)
    if form == "csv":
        cells = [cell for line in csv.reader(io.StringIO(text)) for cell in line]
        assert not any(cell.startswith(("=", "@", "\t", "\r")) for cell in cells)


@pytest.mark.parametrize("form", format_names())
@given(data=tampered(BENCH) | tampered(TESTS))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_a_tampered_file_is_refused_or_reported_beside_a_good_one(folder, form, data):
    (folder / "sent.json").write_text(json.dumps(data))
    code, out, errors = said_by("report", folder, "--format", form)
    assert code in (0, 1)
    assert errors.count("\n") <= 1 and errors.replace("\n", "").isprintable()
    # That format holds numbers and the name of each, no machines.
    assert form == "benchmark-json" or "the good machine" in out
    assert_harmless(form, out)


@given(data=tampered(BENCH))
def test_a_tampered_file_is_refused_or_compared(folder, data):
    (folder / "sent.json").write_text(json.dumps(data))
    for pair in (("good.json", "sent.json"), ("sent.json", "good.json")):
        code, out, errors = said_by("compare", *(folder / name for name in pair))
        assert code in (0, 1, 2) and errors.count("\n") <= 1
        assert (out + errors).replace("\n", "").isprintable()
