"""Ctrl-C during `topokv bench`, once or twice: exit code 130, one line, the file as it was."""

import signal
import subprocess
import sys
import time

import pytest

from topokv.results import read

# The command line as it is, with a worker that names itself and then hangs in its first cell.
COMMAND = """
import sys
from topokv import cli
from topokv.bench.parent import child
child.WORKER = (sys.executable, "-c", sys.argv[1])
raise SystemExit(cli.main(["bench", "--output", sys.argv[2]]))
"""
WORKER = """
import pathlib, time
from topokv.bench.channel import Channel
channel = Channel()
channel.receive()
row = {"workload": "gaussian", "seq_len": 64, "selected_tokens": 8}
channel.send("plan", backend="cpu", environment={}, flush_bytes=1, notes=[], cells=[[row]])
channel.wait()
channel.send("started", cell=0)
pathlib.Path("PLACE").touch()
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends Ctrl-C another way")
@pytest.mark.parametrize("pause", [None, 0.05])
def test_an_interrupted_benchmark_ends_at_once_and_keeps_its_file(tmp_path, pause):
    hung, output = tmp_path / "hung", tmp_path / "bench.json"
    worker = WORKER.replace("PLACE", str(hung))
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, worker, str(output)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while process.poll() is None and not hung.exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        if pause is not None:
            time.sleep(pause)
            process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
        code = process.wait(timeout=20)
    # A second Ctrl-C may come when all is done but leaving, and end that.
    assert code in ((130,) if pause is None else (130, -signal.SIGINT))
    assert errors == "topokv bench: interrupted\n"
    assert [row.status for row in read(output).rows] == ["interrupted"]
