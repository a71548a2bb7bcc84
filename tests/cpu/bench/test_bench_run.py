"""The parent of a run, with workers that behave as told: nothing measured is ever lost."""

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from topokv.bench import Settings
from topokv.bench.parent import Job, measure
from topokv.core import claim
from topokv.results import read

# A worker without torch: two cells of one row each; `act(process, cell)` decides what it does.
WORKER = """
import os, sys, time
from topokv.bench.channel import Channel

def part(**fields):
    samples = {"dense_sdpa_ms": [8.0] * 6, "dense_again_ms": [8.0] * 6,
               "sparse_selected_ms": [2.0] * 6, "score_ms": [1.0]}
    return {"status": "ok", "samples": samples, "facts": {}, "flags": [], **fields}

def measured(cell, **fields):
    channel.send("measured", cell=cell, parts=[part(**fields)])
    channel.wait()

channel = Channel()
job = channel.receive()
cells = [[{"workload": "gaussian", "seq_len": 64, "selected_tokens": 8 * (i + 1)}] for i in (0, 1)]
channel.send("plan", backend="cpu", environment={"fingerprint": "x"}, flush_bytes=1,
             notes=["a note"], cells=cells)
channel.wait()
for cell in (0, 1):
    if cell not in job["done"]:
        channel.send("started", cell=cell)
        act(job["process"], cell)
channel.send("done")
"""
WELL = "def act(process, cell): measured(cell)"


def command(act):
    return [sys.executable, "-c", textwrap.dedent(act) + WORKER]


def job(tmp_path, act=WELL, *, processes=2, output="out/bench.json", **options):
    heard = []
    return Job(
        Settings(processes=processes, max_seconds=1.0),
        tmp_path / output if output else None,
        tmp_path / "results",
        ("topokv", "bench"),
        notify=heard.append,
        warn=heard.append,
        worker=command(act),
        **options,
    )


def outcomes(run):
    return [(row.status, row.metrics.get("num_processes")) for row in run.rows]


def test_every_process_adds_a_value_to_every_row(tmp_path):
    found = measure(job(tmp_path, processes=3))
    assert outcomes(found) == [("ok", 3), ("ok", 3)]
    assert read(tmp_path / "out/bench.json").rows == found.rows
    assert found.environment == {"fingerprint": "x"}
    assert found.settings["processes"] == 3


def test_a_captures_folder_stays_out_of_the_file(tmp_path):
    running = job(tmp_path)
    running.settings = Settings(kv=("gaussian", str(tmp_path / "model.safetensors")), processes=1)
    assert measure(running).settings["kv"] == ["gaussian", "model.safetensors"]


def test_the_default_file_is_named_after_the_backend(tmp_path):
    measure(job(tmp_path, output=None))
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["bench-cpu.json"]


def test_notes_are_passed_on_once_and_progress_before_every_cell(tmp_path):
    running = job(tmp_path)
    heard = []
    running.notify = running.warn = heard.append
    measure(running)
    assert heard.count("a note") == 1
    steps = [(step.process, step.cell) for step in heard if step != "a note"]
    assert steps == [(1, 1), (1, 2), (2, 1), (2, 2)]


SAID = "the process said what is no message"
DEATHS = {
    "raise SystemExit('no luck')": "the process ended with code 1: no luck",
    "os._exit(7)": "the process ended with code 7",
    "os.write(channel._out.fileno(), b'not json\\n'); time.sleep(60)": f"{SAID}: not json",
}


@pytest.mark.parametrize(("deed", "reason"), DEATHS.items(), ids=["raises", "exits", "babbles"])
def test_a_process_that_dies_is_a_row_and_the_rest_goes_on(tmp_path, deed, reason):
    act = f"""
    def act(process, cell):
        if cell == 0:
            {deed}
        measured(cell)
    """
    found = measure(job(tmp_path, act, processes=3))
    assert outcomes(found) == [("failed", None), ("ok", 3)]
    assert found.rows[0].reason == reason


def test_a_process_that_hangs_is_a_row(tmp_path):
    act = """
    def act(process, cell):
        if cell == 1 and process == 1:
            time.sleep(60)
        measured(cell)
    """
    found = measure(job(tmp_path, act, patience=1.0))
    assert outcomes(found) == [("ok", 2), ("failed", None)]
    assert found.rows[1].reason == "no answer for 2 s"


def test_a_cell_that_failed_once_is_not_tried_again(tmp_path):
    act = f"""
    def act(process, cell):
        if cell == 0:
            with open({str(tmp_path / "tries")!r}, "a") as file:
                file.write("x")
            os._exit(1)
        measured(cell)
    """
    measure(job(tmp_path, act, processes=3))
    assert (tmp_path / "tries").read_text() == "x"


def test_running_out_of_memory_is_recorded_as_such(tmp_path):
    act = """
    def act(process, cell):
        measured(cell, status="oom", step="benchmark", reason="full")
    """
    found = measure(job(tmp_path, act))
    assert [(row.status, row.reason) for row in found.rows] == [("oom", "full")] * 2


def test_a_process_that_the_system_killed_for_memory_is_oom(tmp_path, monkeypatch):
    kills = iter(range(100))
    monkeypatch.setattr("topokv.bench.parent.child._kills_for_memory", lambda: next(kills))
    act = f"""
    def act(process, cell):
        os.kill(os.getpid(), {int(getattr(signal, "SIGKILL", 9))})
    """
    found = measure(job(tmp_path, act, processes=1))
    assert [row.status for row in found.rows] == ["oom", "oom"]


def test_what_the_worker_refuses_is_an_error_and_nothing_is_written(tmp_path):
    refusing = job(tmp_path)
    refusing.worker = [
        sys.executable,
        "-c",
        'print(\'{"event": "refused", "message": "device \\\'cuda\\\' is not there"}\')',
    ]
    with pytest.raises(ValueError, match=r"^device 'cuda' is not there$"):
        measure(refusing)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_does_not_start_is_an_error_with_its_last_line(tmp_path):
    broken = job(tmp_path)
    broken.worker = [sys.executable, "-c", "import nothing_of_this_name"]
    with pytest.raises(
        OSError, match=r"^measuring did not begin: the process ended with code 1: ModuleNotFound"
    ):
        measure(broken)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written_is_found_before_measuring(tmp_path):
    (tmp_path / "file").write_text("")
    for output in ("file/bench.json", "."):
        running = job(tmp_path, "raise SystemExit('started')", output=output)
        with pytest.raises(OSError, match=r"file|folder"):
            measure(running)


def test_two_runs_do_not_mix_in_one_file(tmp_path):
    out = tmp_path / "out/bench.json"
    out.parent.mkdir()
    with claim(out), pytest.raises(BlockingIOError, match="another run is writing this file"):
        measure(job(tmp_path))
    assert list(out.parent.iterdir()) == []


def test_bad_settings_are_found_before_a_worker_starts(tmp_path):
    running = job(tmp_path, "raise SystemExit('started')")
    running.settings = Settings(rounds=0)
    with pytest.raises(ValueError, match=r"^rounds must be at least 1, got 0$"):
        measure(running)


PARENT = """
import sys
from pathlib import Path
from topokv.bench import Settings
from topokv.bench.parent import Job, measure
out, act = Path(sys.argv[1]), sys.argv[2]
measure(Job(Settings(processes=2), out, out.parent, (), lambda step: print("step", flush=True),
            print, worker=[sys.executable, "-c", act]))
"""


def written(path):
    return path.exists() and path.read_text()


def ended(pid):
    """Whether the process is gone, or at least dead, within ten seconds."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_a_valid_file_and_no_process(tmp_path, how):
    """Ended while process 1 is in cell 1: cell 0 holds a value, and both rows say interrupted."""
    act = f"""
    def act(process, cell):
        if cell == 1:
            with open({str(tmp_path / "worker.pid")!r}, "w") as file:
                file.write(str(os.getpid()))
            time.sleep(60)
        measured(cell)
    """
    out = tmp_path / "bench.json"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(out), command(act)[-1]])
    deadline = time.monotonic() + 30
    while not written(tmp_path / "worker.pid") and time.monotonic() < deadline:
        time.sleep(0.02)
    parent.send_signal(how)
    parent.wait(timeout=30)
    worker = int((tmp_path / "worker.pid").read_text())
    assert ended(worker)
    rows = read(out).rows
    assert [(row.status, row.reason) for row in rows] == [
        ("interrupted", "1 of 2 processes"),
        ("interrupted", "not measured yet"),
    ]
    assert rows[0].metrics["speedup"] == 4
    assert json.loads(out.read_text())["rows"][0]["samples"]["dense_sdpa_ms"] == [[8.0] * 6]
