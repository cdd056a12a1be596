"""Reading files as text or TOML, and writing them so that a file is whole or not there."""

from __future__ import annotations

import errno
import os
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from schedules.input_error import InputError
from schedules.text_file import read_text
from sim.files import locks

__all__ = [
    "alone",
    "read_text",
    "reason",
    "regular",
    "replaceable",
    "replacing",
    "staging",
    "target",
    "together",
    "toml",
    "writable",
    "write_text",
]


def toml(text: str, where: object) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises InputError, which names ``where`` the text is from, for a text that is not TOML.
    """
    try:
        return deepcopy(_parsed(text))
    except RecursionError:
        raise InputError(f"{where} nests its tables too deeply to be read") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where} is not TOML: {error}") from None
    except ValueError:
        raise InputError(f"{where} has a number with too many digits") from None


@lru_cache(maxsize=64)
def _parsed(text: str) -> dict[str, Any]:
    """Return the tables of a text; a sweep reads the same files again and again."""
    return tomllib.loads(text)


def regular(path: Path, key: str) -> Path:
    """Return the path of a file that is there.

    Raises InputError, which names the ``key`` that gives the path, where there is no such file.
    """
    try:
        if path.is_dir():
            raise InputError(f"{key}: {path} is a folder, not a file")
        if not path.is_file():
            raise InputError(f"{key}: there is no file {path}")
    except OSError as error:
        raise InputError(f"{key}: cannot read {path}: {error.strerror}") from None
    return path


def writable(folder: Path) -> Path:
    """Return the folder if files can be made in it, or it can be made; nothing is made yet.

    Raises InputError otherwise.
    """
    try:
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from None
    except ValueError:  # a character that no path can have
        raise InputError(f"cannot write to {str(folder)!r}: it is not a possible path") from None
    there = _existing(folder)
    if not there.is_dir():
        which = "it" if there == folder else there
        raise InputError(f"cannot write to {folder}: {which} is a file")
    try:
        with tempfile.TemporaryFile(dir=there):
            return folder
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from None


def replaceable(path: Path) -> Path:
    """Return the path if a file could be written there; nothing is made yet.

    Raises InputError otherwise.
    """
    if os.path.isdir(path):  # noqa: PTH112  it answers for every path
        raise InputError(f"cannot write {path}: it is a folder")
    file = target(path)
    writable(file.parent)
    if not os.path.lexists(file):
        writable(file)  # its name may be too long
    elif not file.is_file():
        raise InputError(f"cannot write {path}: it is a pipe or a device, not a file")
    return path


def target(path: Path) -> Path:
    """Return the file that writing to ``path`` writes, which is where a symbolic link leads.

    Raises InputError for a link that leads back to itself.
    """
    try:
        os.stat(path)  # noqa: PTH116  it answers for every path
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(f"cannot write {path}: the link leads back to itself") from None
    except ValueError:  # :func:`writable` refuses such a path
        return path
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def write_text(path: Path, text: str) -> Path:
    """Write a file, or the file that a link leads to; no reader sees half of it.

    Raises InputError where it cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file, with the ending of ``path``, that takes its place at the end.

    Raises InputError where that cannot be. If writing fails, nothing is left behind, not even a
    folder.
    """
    with together(path) as made:
        yield made[0]


@contextmanager
def together(*paths: Path) -> Iterator[list[Path]]:
    """Yield temporary files that take the places of ``paths`` at the end, all of them or none.

    Raises InputError as :func:`replacing` does.
    """
    files = [target(replaceable(path)) for path in paths]
    named = " and ".join(map(str, paths))
    with _told(named), ExitStack() as stack:
        folders = [stack.enter_context(staging(file.parent)) for file in files]
        made = [folder / path.name for folder, path in zip(folders, paths, strict=True)]
        with _told(named):  # before staging names a folder
            yield made
        with locks.uninterrupted():
            for temporary, file in zip(made, files, strict=True):
                file.parent.mkdir(parents=True, exist_ok=True)
                temporary.replace(file)


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """Yield an empty temporary folder on the disk of ``folder``, which need not exist yet.

    Removes what killed processes have left there. Raises InputError where something inside cannot
    be written, as on a full disk.
    """
    writable(folder)
    with _told(f"to {folder}"), locks.temporary(_existing(folder)) as made:
        yield made


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold ``path`` so that only this process writes to it, as often as it likes; make its folder.

    Raises InputError where another process holds it.
    """
    folder = target(replaceable(path)).parent
    there = _existing(folder)
    try:
        with _told(path):
            folder.mkdir(parents=True, exist_ok=True)
        with locks.of(target(path)) as free:
            if not free:
                raise InputError(
                    f"another process writes {path} just now; wait for it, or name another file"
                )
            yield
    finally:
        while folder != there:
            with suppress(OSError):  # a folder with files in it stays
                folder.rmdir()
            folder = folder.parent


@contextmanager
def _told(what: object) -> Iterator[None]:
    """Turn the system's refusal to write into an InputError that names ``what`` was written."""
    try:
        yield
    except BrokenPipeError:  # the reader of the standard output is gone
        raise
    except OSError as error:
        raise InputError(f"cannot write {what}: {reason(error)}") from None


def reason(error: OSError) -> str:
    """Return why the operation failed, in the words of the system."""
    return os.strerror(error.errno) if error.errno else str(error)


def _existing(path: Path) -> Path:
    """Return the path itself, or the nearest folder above it that exists."""
    return next(p for p in (path, *path.parents, Path()) if os.path.lexists(p))
