"""Files that are whole or not there, folders that can be written to, and text that can be read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOST_BYTES = 4 * 2**20
"""No recipe, topology or config.json is longer."""


def read_text(path: Path, what: str = "") -> str:
    """The text of a file, without the mark that some editors put before it.

    Raises ValueError, calling it ``what``, when it cannot be read, is too long or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            found = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot read {what}{path}: {error.strerror}") from None
    except ValueError:  # a character that no path can have
        raise ValueError(f"cannot read {what}{str(path)!r}: no path is written so") from None
    if len(found) > MOST_BYTES:
        raise ValueError(f"cannot read {what}{path}: it is longer than {MOST_BYTES:,} bytes")
    try:
        return found.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"cannot read {what}{path}: it is not text in UTF-8") from None


def writable(folder: Path) -> Path:
    """The folder; ValueError when it could not be made, or files in it. Nothing is made yet."""
    try:
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}") from None
    except ValueError:  # a character that no path can have
        raise ValueError(f"cannot write to {str(folder)!r}: no path is written so") from None
    there = _existing(folder)
    if not there.is_dir():
        which = "it" if there == folder else there
        raise ValueError(f"cannot write to {folder}: {which} is a file")
    try:
        with tempfile.TemporaryFile(dir=there):
            return folder
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}") from None


def replaceable(path: Path) -> Path:
    """The path; ValueError when no file could be written there. Nothing is made yet."""
    if os.path.isdir(path):  # noqa: PTH112  which answers for every path
        raise ValueError(f"cannot write {path}: it is a folder")
    writable(path.parent)
    if not os.path.lexists(path):
        writable(path)  # its name may be too long
    return path


def write_text(path: Path, text: str) -> Path:
    """Write a file; nobody sees half of it."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file, with the ending of ``path``, that takes its place in the end.

    Raises ValueError when that cannot be. If writing fails, nothing is left, no folder either.
    """
    replaceable(path)
    with staging(path.parent) as folder:
        temporary = folder / path.name
        yield temporary
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(path)


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """An empty temporary folder on the disk of ``folder``, which need not be there yet."""
    writable(folder)
    with tempfile.TemporaryDirectory(dir=_existing(folder), prefix=".traincast-") as made:
        yield Path(made)


def _existing(path: Path) -> Path:
    """The path itself, or the nearest one above it that is there."""
    return next(p for p in (path, *path.parents, Path()) if os.path.lexists(p))
