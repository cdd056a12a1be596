"""Text from files, or one sentence that says why there is none."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from schedules.input_error import InputError

MOST_BYTES = 4 * 2**20
"""No recipe, topology or config.json is longer."""


def read_text(path: Path, what: str = "", most: int = MOST_BYTES) -> str:
    """The text of a file, without the mark that some editors put before it.

    Raises InputError, calling it ``what``, when it cannot be read, is a pipe or a device, has more
    than ``most`` bytes or is not UTF-8.
    """
    try:
        found = _bytes(path, most + 1)
    except OSError as error:
        raise InputError(f"cannot read {what}{path}: {error.strerror}") from None
    except ValueError:  # a character that no path can have
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
    """The first of them; None of what is no file, where reading may never end."""
    mode = os.stat(path).st_mode  # noqa: PTH116  a character that no path can have is a ValueError
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return None
    with path.open("rb") as file:
        return file.read(most)
