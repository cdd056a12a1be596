"""Files that are whole or not there, and folders that can be written to."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def writable(folder: Path) -> Path:
    """The folder, made where it is missing; ValueError when files cannot be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}") from None


def write_text(path: Path, text: str) -> Path:
    """Write a file; nobody sees half of it."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path``, with its ending, that takes its place in the end.

    Raises ValueError when the folder cannot be written to. If writing fails, nothing is left.
    """
    writable(path.parent)
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".traincast-") as folder:
        temporary = Path(folder) / path.name
        yield temporary
        temporary.replace(path)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of ``path`` and all that was in it in the end."""
    writable(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".traincast-") as folder:
        temporary = Path(folder) / path.name
        temporary.mkdir()
        yield temporary
        if path.exists():
            shutil.move(path, Path(folder) / "before")
        temporary.replace(path)
