"""Reads files that may be packed by gzip, whatever their names say."""

from __future__ import annotations

import gzip
import zlib
from io import BufferedReader
from pathlib import Path
from typing import cast

MAGIC = b"\x1f\x8b"


def opened(path: Path) -> BufferedReader:
    """Open the file, unpacking it if its first bytes are gzip's."""
    packed = starts(path, MAGIC)
    return cast(BufferedReader, gzip.open(path, "rb")) if packed else path.open("rb")


def starts(path: Path, magic: bytes) -> bool:
    """Return whether this is a file that starts with these bytes, as it is."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def beginning(path: Path, size: int = 4096) -> bytes:
    """Return the first bytes of a file, which say what it is; fewer if it is cut off or no file."""
    out = b""
    if not path.is_file():
        return out
    try:
        with opened(path) as file:
            while len(out) < size and (piece := file.read1(size)):
                out += piece
    except (OSError, EOFError, zlib.error):
        pass
    return out


def content(path: Path) -> bytes:
    """Return all bytes of a file. Raises OSError: BadGzipFile where what is packed is broken."""
    try:
        with opened(path) as file:
            return file.read()
    except (EOFError, zlib.error) as error:
        raise gzip.BadGzipFile(str(error)) from error
