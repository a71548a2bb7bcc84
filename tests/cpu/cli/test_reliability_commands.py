"""Command lines, sensible and not: an exit code, one line a fault, and no half-written file.

Everything runs in this process, for real but for what takes long: a benchmark's measuring, which
is replaced by a worker that answers at once or dies, a selector's judging, models and drawing.
"""

import argparse
import contextlib
import functools
import io
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topokv import cli
from topokv.bench import Part, identity
from topokv.bench.parent.child import ChildError
from topokv.bench.worker import process as worker
from topokv.core import files
from topokv.inputs import SAMPLE, texts
from topokv.machine import device_probe as probe
from topokv.results import codec, record

# What an option may sensibly be given, by its name, and what it may be given besides.
GOOD = {
    "kv": ["gaussian", "sample", "copy.safetensors"],
    "layer": ["12"],
    "selector": ["drift", "witness", "oracle", "streaming+witness"],
    "attention": ["gather"],
    "sharing": ["request", "kv-head", "q-head"],
    "dtype": ["float16", "bfloat16", "float32", "float64"],
    "device": ["auto", "cpu"],
    "graphs": ["auto", "off"],
    "processes": ["1", "2"],
    "model": ["folder"],
    "text": ["text.txt"],
    "reserve": ["witness=0.5,drift=0.5"],
    "captures": ["kept"],
    "selected_tokens": ["1", "8", "100", "2048"],
    "heads": ["4", "12"],
    "kv_heads": ["1", "2", "4"],
    "threads": ["1", "2"],
    "paths": ["good.json", "results", "tests.json", "cut.json", "."],
    "base": ["good.json"],
    "new": ["good.json", "tests.json"],
    "columns": ["selector", "selector,speedup", ","],
    "sort": ["speedup", "-speedup,selector"],
    "where": ["selector=drift", "speedup>=2"],
    "layers": ["all", "3,17"],
    "torch_version": ["2.13.0", "2.13.0+cu126"],
    "plots": ["pictures"],
    "output": ["new.json", "good.json", "made"],
}
NUMBERS = ["1", "3", "64"]
BAD_NUMBERS = ["0", "-1", "1e3", "0.5", "inf", "nan", "abc", "0x10", "1_0", "٣", "", " 7"]
BAD_NUMBERS += ["9" * 25, "-" + "9" * 25, "16384000"]
BAD_PATHS = ["missing", "missing/deep/a.json", "folder", "link.json", "cut.safetensors", "text.txt"]
BAD_PATHS += ["new\nline.json", "", ".", "/dev/null", "a" * 300, "cut.json/a.json"]
BAD_WORDS = ["driftt", "", "+", "cuda:x", "rocm:99", "speedup>x", "nothing=1", "=", "-", "3-17"]
SMALL_BENCH = ["--processes", "1", "--kv", "gaussian"]
FATES = ["fine", "fine", "fine", "dies", "dies at once", "out of memory", "Ctrl-C"]


class InstantWorker:
    """What a worker would answer, at once: the real plan and checks, made-up times, some deaths."""

    fate = "fine"

    def __init__(self, asked, process, done, patience, command=None):
        self._asked, self._done, self._random = asked, done, random.Random(process)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def go_on(self):
        return None

    def messages(self):
        try:
            _, plan = worker._plan(self._asked)
        except (ValueError, OSError) as error:
            yield {"event": "refused", "message": str(error)}
        cells = [[identity(row) for row in cell.rows] for cell in plan.cells]
        head = {"backend": "cpu", "environment": {}, "flush_bytes": 0, "notes": plan.notes}
        self._meet_fate("dies at once")
        yield {"event": "plan", "cells": cells, **head}
        for index, cell in enumerate(cells):
            if index not in self._done:
                yield {"event": "started", "cell": index}
                for fate in ("dies", "out of memory", "Ctrl-C"):
                    self._meet_fate(fate, self._random.random() < 0.3)
                parts = [self._part().to_json() for _ in cell]
                yield {"event": "measured", "cell": index, "parts": parts}
        yield {"event": "done"}

    def _meet_fate(self, fate, now=True):
        if now and self.fate == fate == "Ctrl-C":
            raise KeyboardInterrupt
        if now and self.fate == fate:
            raise ChildError("it died", out_of_memory=fate == "out of memory")

    def _part(self):
        arms = ("dense_sdpa_ms", "dense_again_ms", "sparse_selected_ms", "score_ms", "summary_ms")
        times = [0.0, 1e-9, 0.1, 0.2, 5.0, 1e9]
        return Part(
            samples={arm: [self._random.choice(times) for _ in range(3)] for arm in arms},
            facts={"cache_bytes": 1e6, "recall": None},
            dense_backend="FLASH",
            sparse_backend="FLASH",
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A working folder with files to name, and the slow parts replaced."""
    folder = tmp_path_factory.mktemp("commands")
    fill(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("topokv.bench.parent.run.Child", InstantWorker)
        patch.setattr(worker, "set_threads", lambda threads: None)
        patch.setattr("topokv.cli.devices.probe", functools.cache(probe.probe))
        patch.setattr(files.os, "fsync", lambda handle: None)
        for module in ("topokv.inputs", "topokv.inputs.capture_folder"):
            patch.setattr(f"{module}.load_model", no_model)
        patch.setattr("topokv.quality.evaluate", instant_evaluation)
        patch.setattr("topokv.inputs.standard_text", functools.cache(texts.standard_text))
        patch.setattr("topokv.report.write_plots", lambda report, folder: None)
        patch.setattr("topokv.report.plots.draw.inline_svg", lambda figure: "<svg/>")
        yield folder


def no_model(*args, **kwargs):
    raise ValueError("there is no model here")


def instant_evaluation(capture, question, *progress):
    """A row for each selector and setting, nothing worked out."""
    sizes = [(setting.block_size, setting.selected_tokens) for setting in question.settings]
    return [
        record.Row(
            workload=capture.name,
            seq_len=capture.kv_len,
            block_size=block_size,
            selected_tokens=tokens,
            selector=arm.name,
            metrics={"recall": 0.5, "summary_bytes": None},
        )
        for arm in question.arms
        for block_size, tokens in sizes
    ]


def fill(folder):
    row = record.Row(
        workload="sample",
        selector="drift",
        seq_len=64,
        selected_tokens=8,
        metrics={"speedup": 2.0, "recall": None},
    )
    run = record.Run(kind="bench", backend="cpu", created="2026-12-01", rows=(row,))
    codec.write(folder / "good.json", run)
    tests = {"exitcode": 0, "created": 1.0, "duration": 2.0, "summary": {"passed": 1}, "tests": []}
    codec.write_json(folder / "tests.json", tests)
    (folder / "cut.json").write_text('{"schema": ')
    (folder / "cut.safetensors").write_bytes(SAMPLE.read_bytes()[:5000])
    (folder / "copy.safetensors").write_bytes(SAMPLE.read_bytes())
    (folder / "text.txt").write_text("some words " * 50)
    (folder / "folder").mkdir()
    with contextlib.suppress(OSError):
        (folder / "link.json").symlink_to("link.json")


def values_of(action):
    """Words that an option may be given: sensible ones nine times in ten."""
    kind = action.type.__name__ if action.type else "str"
    bad = {"Path": BAD_PATHS, "str": BAD_WORDS}.get(kind, BAD_NUMBERS)
    good = list(map(str, action.choices or GOOD.get(action.dest, NUMBERS)))
    return st.integers(0, 19).flatmap(lambda one: st.sampled_from(bad if one < 1 else good))


def commands():
    """The name and the actions of each command."""
    (sub,) = (a for a in cli.build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {name: [a for a in p._actions if a.dest != "help"] for name, p in sub.choices.items()}


COMMANDS = commands()


@st.composite
def command_lines(draw):
    name = draw(st.sampled_from([*COMMANDS, "bench", "bench", "report"]))
    # Small unless the line says otherwise: what is drawn comes later, and the later word counts.
    words = [name, *(SMALL_BENCH if name == "bench" else ())]
    for action in COMMANDS[name]:
        if draw(st.integers(0, 19)) >= (19 if action.required else 4):
            continue
        words += action.option_strings[-1:]
        if action.nargs != 0:
            most = 3 if action.nargs in ("+", "*") else 1
            values = st.lists(values_of(action), min_size=1, max_size=most)
            words += draw(values)
    return words + draw(st.sampled_from([[]] * 20 + [["--nothing"], ["-x", "1"], ["--"]]))


def said_by(words, fate):
    """Exit code, output and errors of a command line."""
    out, errors = io.StringIO(), io.StringIO()
    InstantWorker.fate = fate
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = cli.main(words)
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue(), errors.getvalue()


def stamps(folder):
    found = (path for path in folder.rglob("*") if not path.is_symlink())
    return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in found}


@given(words=command_lines(), fate=st.sampled_from(FATES))
@settings(
    max_examples=10 * settings.default.max_examples,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_any_command_line_ends_with_a_code_and_whole_files(place, words, fate):
    before = stamps(place)
    code, _, errors = said_by(words, fate)
    changed = {path for path, stamp in stamps(place).items() if before.get(path) != stamp}
    assert code in (0, 1, 2) or (code == 130 and fate == "Ctrl-C")
    assert all(line.startswith("topokv") for line in errors.splitlines())
    assert not any(path.name.endswith((".part", ".lock")) for path in changed)
    if code == 2:
        assert errors and {path for path in changed if path.is_file()} == set()
    for path in changed:
        if words[0] == "bench" and path.is_file():
            assert codec.read(path).rows
