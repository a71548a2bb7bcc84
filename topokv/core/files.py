"""Files that are whole or not there, read within bounds, and claimed by one run at a time.

Standard library only, and no call that one platform alone has without another way for the rest.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

# Far above any results file; a file that someone else made is not read into memory beyond it.
LARGEST_BYTES = 64 * 2**20

BUSY = "another run is writing this file; wait until it ends or name another --output"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place when the block ends well.

    It is synced first, and its folder after, so that whenever the machine stops there is the old
    file or the new one and never half of one. A link is followed, not replaced. Raises OSError,
    naming `path`, where it can't be written or is not a regular file.
    """
    target = real(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        require_regular(path)
        yield beside
        _sync(beside)
        beside.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise _named(error, path) from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """`text` at `path` in UTF-8, whole or not at all."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")


def read_text(path: Path) -> str:
    """The text of the file at `path`.

    Raises ValueError, without the path, for more than LARGEST_BYTES or what is not UTF-8, OSError
    for what can't be read or is not a regular file: a pipe would never end.
    """
    require_regular(path)
    with path.open("rb") as file:
        data = file.read(LARGEST_BYTES + 1)
    if len(data) > LARGEST_BYTES:
        raise ValueError(f"larger than {LARGEST_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start})") from error


def shown(path: str | Path) -> str:
    """A path as one line of text that any file or terminal takes; `?` for what is not a letter."""
    return "".join(sign if sign.isprintable() else "?" for sign in str(path))


def real(path: Path) -> Path:
    """Where `path` leads, links followed; a loop of links, which leads nowhere, is no error yet."""
    return Path(os.path.realpath(path))


def require_regular(path: Path) -> None:
    """Raise OSError where `path` is there and is a folder, a device or a pipe."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder; name a file", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def require_room(path: Path) -> None:
    """Raise OSError, naming `path`, unless a file can be made where it or its folders will be."""
    folder = next(place for place in path.absolute().parents if place.exists())
    try:
        # Trying is the one sure way to know: permissions, quotas and read-only disks differ.
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise _named(error, path) from error


@contextmanager
def claim(path: Path) -> Iterator[None]:
    """Hold `path` for one run: BlockingIOError where another process holds it.

    The claim is a lock on a file beside it, which the system lets go when the process ends, however
    it ends. What a killed run left half written is cleared away. On a file system that has no
    locks every claim succeeds.
    """
    target = real(path)
    lock = target.with_name(f".{target.name}.lock")
    try:
        handle = _locked(lock)
    except OSError as error:
        raise _named(error, path) from error
    try:
        for left in target.parent.glob(f".{_literal(target.name)}.*.part"):
            left.unlink(missing_ok=True)
        yield
    finally:
        removed = _removed(lock)
        os.close(handle)
        # Windows does not remove a file that is open.
        removed or _removed(lock)


def _locked(lock: Path) -> int:
    """An open, locked handle on the file at `lock`, which is made where there is none."""
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if not _try_lock(handle):
                raise BlockingIOError(errno.EAGAIN, BUSY)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), lock.stat()):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        # Its last holder removed it between our opening and our locking it: make a new one.
        os.close(handle)


def _try_lock(handle: int) -> bool:
    """Whether the handle's file is ours now, or on a system without locks nobody's."""
    try:
        fcntl: Any = import_module("fcntl")
    except ImportError:
        return _try_lock_windows(handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _try_lock_windows(handle: int) -> bool:
    try:
        msvcrt: Any = import_module("msvcrt")
    except ImportError:
        return True
    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EDEADLK)
    return True


def _removed(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _literal(name: str) -> str:
    """`name` as a glob pattern that matches it alone."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in name)


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename last, where a folder can be opened at all: on Windows it can't."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _named(error: OSError, path: Path) -> OSError:
    """The same error about the file that was asked for, not the one beside it."""
    if error.errno is None:
        return error
    return OSError(error.errno, error.strerror, str(path))
