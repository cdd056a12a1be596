"""The file of a sweep: it is whole at every moment, and one that was interrupted is continued."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schedules.input_error import InputError
from sim.files import read_text, write_text

OPEN = "unfinished"
"""A file has this key as long as its sweep is not done: the cases that are."""


def write(path: Path, facts: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Write what was found, behind the facts of command and machine."""
    rows = {OPEN if key == "done" else key: value for key, value in found.items()}
    write_text(path, json.dumps({**facts, **rows}, indent=1))


def begun(path: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an interrupted sweep had found; nothing where the file is no such thing.

    Raises InputError where another command began it, whose measurements would be lost.
    """
    if not path.exists():
        return {}
    try:
        held = json.loads(read_text(path))
        done = [str(name) for name in held.pop(OPEN)]
        command = held.pop("command")
    except (InputError, AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return {}
    if command != facts["command"]:
        raise InputError(
            f"{path} holds what {command!r} had measured when it was interrupted; run that again, "
            "name another file, or delete it"
        )
    return {key: value for key, value in held.items() if key not in facts} | {"done": done}
