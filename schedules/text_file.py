"""Reads text from files, or says in one sentence why it cannot."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from schedules.input_error import InputError

MOST_BYTES = 4 * 2**20
"""The longest recipe, topology or config.json that is read, in bytes."""


def read_text(path: Path, what: str = "", most: int = MOST_BYTES) -> str:
    """Return the text of a file, without the byte order mark that some editors put before it.

    Raises InputError when it cannot be read, is a pipe or a device, has more than ``most`` bytes or
    is not UTF-8. ``what`` is what the message calls the file.
    """
    try:
        found = _bytes(path, most + 1)
    except OSError as error:
        raise InputError(f"cannot read {what}{path}: {error.strerror}") from None
    except ValueError:  # the path has a character that no path can have
        raise InputError(f"cannot read {what}{str(path)!r}: no path is written so") from None
    if found is None:
        raise InputError(f"cannot read {what}{path}: it is a pipe or a device, not a file")
    if len(found) > most:
        raise InputError(f"cannot read {what}{path}: it is longer than {most:,} bytes")
    try:
        return found.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"cannot read {what}{path}: it is not text in UTF-8") from None


def _bytes(path: Path, most: int) -> bytes | None:
    """Return the first ``most`` bytes; None for a pipe or device, where reading may never end."""
    mode = os.stat(path).st_mode  # noqa: PTH116  a character that no path can have is a ValueError
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return None
    with path.open("rb") as file:
        return file.read(most)
