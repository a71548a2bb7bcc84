"""Files are whole or not there, claimed by one run at a time, and read within bounds."""

import errno
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from topokv import cli
from topokv.core import files
from topokv.results import ResultFileError, load_json
from topokv.results.codec import write_json

KEPT = '{\n "old": 1\n}\n'


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "bench-cpu.json"
    target.write_text(KEPT)
    return target


def others(path):
    return [other.name for other in path.parent.iterdir() if other != path]


@pytest.mark.parametrize(
    ("broken", "attribute"),
    [(files.os, "fsync"), (files.Path, "replace"), (files.Path, "write_text")],
    ids=["sync", "rename", "write"],
)
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), MemoryError()])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    path, monkeypatch, broken, attribute, error
):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(broken, attribute, fail)
    with pytest.raises(type(error)) as caught:
        write_json(path, {"new": 2})
    assert path.read_text() == KEPT and others(path) == []
    assert isinstance(error, MemoryError) or caught.value.filename == str(path)


def test_a_file_that_outgrows_its_disk_is_refused_and_the_old_one_kept(path):
    resource = pytest.importorskip("resource", reason="only POSIX systems limit a file's size")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError) as caught:
            write_json(path, ["x" * 100] * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == str(path)
    assert path.read_text() == KEPT and others(path) == []


def test_a_missing_folder_is_an_error_about_the_file_that_was_asked_for(tmp_path):
    missing = tmp_path / "missing" / "bench.json"
    with pytest.raises(FileNotFoundError) as caught:
        write_json(missing, {})
    assert caught.value.filename == str(missing)


@pytest.mark.parametrize("name", ["bench.json/a.json", "bench.json/missing/a.json"])
def test_a_place_without_room_is_an_error_about_the_file_that_was_asked_for(tmp_path, name):
    (tmp_path / "bench.json").write_text("")
    with pytest.raises(OSError) as caught:
        files.require_room(tmp_path / name)
    assert caught.value.filename == str(tmp_path / name)


def test_a_written_file_has_the_rights_of_any_new_file(path):
    plain = path.with_name("plain")
    plain.touch()
    write_json(path, {})
    assert path.stat().st_mode == plain.stat().st_mode


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes on this system")
def test_pipes_and_devices_are_neither_replaced_nor_read(tmp_path):
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        write_json(pipe, {})
    with pytest.raises(ResultFileError, match=r"pipe\.json: not a regular file$"):
        load_json(pipe)
    assert pipe.is_fifo()


def test_a_link_is_followed_and_stays_a_link(path):
    link = path.with_name("link.json")
    try:
        link.symlink_to(path)
    except OSError:
        pytest.skip("links can't be made here")
    write_json(link, {"new": 2})
    assert link.is_symlink() and load_json(path) == {"new": 2}


def test_a_second_run_is_refused_while_the_first_one_writes(path):
    with files.claim(path):
        write_json(path, {})
        with pytest.raises(BlockingIOError) as caught, files.claim(path):
            pass
    assert (caught.value.filename, caught.value.strerror) == (str(path), files.BUSY)
    with files.claim(path):
        pass
    assert others(path) == []


def test_a_claim_clears_what_a_killed_run_left_half_written(path):
    path.with_name(f".{path.name}.4711.part").write_text("{")
    path.with_name(".other.json.4711.part").write_text("{")
    with files.claim(path):
        pass
    assert others(path) == [".other.json.4711.part"]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes end another way here")
def test_a_killed_run_holds_nothing(path):
    code = "import sys, time, pathlib; from topokv.core import files\n"
    code += "with files.claim(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    with child:
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError), files.claim(path):
            pass
        child.kill()
    with files.claim(path):
        pass


def windows(monkeypatch, error=None):
    """No fcntl, and an msvcrt that locks what is not locked yet, or raises `error`."""

    def locking(handle, mode, size):
        if error is not None:
            raise error

    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))


def test_without_fcntl_windows_locks_are_used(path, monkeypatch):
    windows(monkeypatch)
    with files.claim(path):
        pass
    windows(monkeypatch, OSError(errno.EACCES, "Permission denied"))
    with pytest.raises(BlockingIOError), files.claim(path):
        pass


@pytest.mark.parametrize("system", ["no locks", "no locks on this disk"])
def test_where_there_are_no_locks_every_claim_succeeds(path, monkeypatch, system):
    windows(monkeypatch, OSError(errno.ENOTSUP, "Not supported"))
    if system == "no locks":
        monkeypatch.setitem(sys.modules, "msvcrt", None)
    with files.claim(path), files.claim(path):
        pass


def test_a_folder_that_can_not_be_opened_is_not_synced(path, monkeypatch):
    def refuse(name, flags, *mode):
        raise PermissionError(errno.EACCES, "Permission denied", name)

    monkeypatch.setattr(files.os, "open", refuse)
    write_json(path, {"new": 2})
    assert load_json(path) == {"new": 2}


def test_only_half_of_a_surrogate_pair_is_replaced(path):
    path.write_text(r'{"a": "x\ud83dy", "b": "\ud83d\ude00"}')
    assert load_json(path) == {"a": "x?y", "b": "😀"}


# Beginnings of a results file, and what is wrong with it.
TOP = '{"schema": "topokv-results", "schema_version": 1, "kind": "bench", "backend": "cpu", '
TOP += '"created": "2026-12-01", "rows": [], '
BAD = {
    "empty": (b"", "not JSON: Expecting value: line 1 column 1 (char 0)"),
    "truncated": (TOP.encode(), "not JSON: Expecting property name enclosed in double quotes: "),
    "binary": (bytes(range(256)), "not UTF-8 (byte 128)"),
    "utf-16": (TOP.encode("utf-16"), "not UTF-8 (byte 0)"),
    "huge": (None, "larger than 64 MiB"),
    "deep": (b"[" * 100_000, "not JSON: nested too deeply"),
    "deep object": (b'{"a":' * 100_000, "not JSON: nested too deeply"),
    "deep settings": (
        f'{TOP}"settings": {"[" * 50}{"]" * 50}}}'.encode(),
        "settings: expected an object, got [[[",
    ),
    "deep field": (
        f'{TOP}"environment": {{"a": {"[" * 50}{"]" * 50}}}}}'.encode(),
        "environment.a.0.0.0.0.0.0.0: nested more than 8 deep",
    ),
    "infinity": (
        f'{TOP}"environment": {{"a": 1e999}}}}'.encode(),
        "environment.a: expected a finite number, got inf",
    ),
    "not a number": (
        f'{TOP}"settings": {{"a": NaN}}}}'.encode(),
        "settings.a: expected a finite number, got nan",
    ),
    "endless number": (
        f'{TOP}"settings": {{"a": {"9" * 400}}}}}'.encode(),
        "settings.a: expected a finite number, got 999",
    ),
    "longer number": (f'{TOP}"a": {"9" * 9999}}}'.encode(), "not JSON: Exceeds the limit (4300 "),
    "another version": (
        TOP.replace('version": 1', 'version": 7').encode() + b'"a": 1}',
        "schema_version: this topokv reads version 1, the file has version 7",
    ),
    "no results": (b"[1, 2]", "expected an object, got [1, 2]"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_line_beside_good_files(name, tmp_path, capsys):
    content, reason = BAD[name]
    bad = tmp_path / "bad.json"
    bad.write_bytes(content or b"")
    if content is None:
        os.truncate(bad, 100 * 2**20)
    row = '{"status": "ok", "seq_len": 4711, "selected_tokens": 8, "speedup": 2.0}'
    (tmp_path / "good.json").write_text(TOP.replace("[]", f"[{row}]") + '"command": []}')
    arguments = ["report", str(tmp_path), "--format", "csv"]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr()
    assert "4711" in shown.out
    assert shown.err.startswith(f"topokv report: {bad}: {reason}")
    assert shown.err.count("\n") == 1
    assert cli.main([*arguments, "--strict"]) == 1
