"""Temporary folders and files that show other processes whether their maker still lives.

The maker holds a lock on them, which ends with its process even if that is killed; what nobody
holds can be removed. On disks without locks nothing is held, and nothing is removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = ".traincast-"


@contextmanager
def temporary(folder: Path) -> Iterator[Path]:
    """Yield an empty folder inside ``folder``, removed at the end.

    Folders that ended processes have left there are removed at once.
    """
    clear(folder)
    made, held = _made(folder)
    try:
        yield made
    finally:
        with uninterrupted():
            shutil.rmtree(made, ignore_errors=True)
            _release(held)


def _made(folder: Path) -> tuple[Path, int | None]:
    while True:
        made = Path(tempfile.mkdtemp(dir=folder, prefix=PREFIX))
        try:
            return made, _lock(made)
        except (BlockingIOError, FileNotFoundError):
            continue  # another process removed it, as it saw no lock on it yet
        except OSError:
            return made, None


@contextmanager
def of(file: Path) -> Iterator[bool]:
    """Yield whether this process alone holds the lock of a file's name, a hidden file beside it."""
    name = hashlib.sha256(os.fsencode(file.name)).hexdigest()[:16]
    beside = file.parent / f"{PREFIX}{name}.lock"
    try:
        held = _opened(beside)
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        with uninterrupted():
            beside.unlink(missing_ok=True)
            _release(held)


def _opened(beside: Path) -> int | None:
    while True:
        os.close(os.open(beside, os.O_CREAT | os.O_RDONLY, 0o644))
        try:
            return _lock(beside)
        except FileNotFoundError:
            continue  # the process that held it has just removed it
        except BlockingIOError:
            raise
        except OSError:
            return None


def clear(folder: Path) -> None:
    """Remove the temporary folders that ended processes have left in a folder."""
    for name in os.listdir(folder):  # noqa: PTH208  only names are needed
        if name.startswith(PREFIX) and (folder / name).is_dir():
            with suppress(OSError):
                held = _lock(folder / name)
                shutil.rmtree(folder / name, ignore_errors=True)
                _release(held)


def _lock(path: Path) -> int:
    """Lock a path and return its file descriptor, to be closed to release the lock.

    Raises BlockingIOError where another process has it, FileNotFoundError where the path is gone,
    and another OSError where there are no locks.
    """
    found = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(found), os.stat(path)):  # noqa: PTH116  same as fstat
            raise FileNotFoundError
    except OSError:
        os.close(found)
        raise
    return found


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Wait until no other process has its turn with a folder, and make others wait meanwhile."""
    found = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(found, fcntl.LOCK_EX)
        yield
    finally:
        os.close(found)


def _release(held: int | None) -> None:
    if held is not None:
        os.close(held)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C, so that several short steps are all done or not at all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if caught:
            signal.raise_signal(signal.SIGINT)
