"""Writing: JSON on standard output, files that are whole or not there, folders that can be used."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def print_json(data: object) -> None:
    """Write data as JSON to standard output, NumPy's numbers included."""
    print(json.dumps(data, indent=2, default=_plain))


def _plain(value: Any) -> object:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def write_text(path: Path, text: str) -> Path:
    """Write a file under a temporary name and rename it, so that nobody sees half of it."""
    writable(path.parent)
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder")
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)  # as open() would have, mkstemp is stricter
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def writable(folder: Path) -> Path:
    """The folder, made where it is missing; ValueError when files cannot be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}") from None
