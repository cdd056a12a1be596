"""The grammar of edits: the text that people write, and what it means."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import NamedTuple

from schedules.input_error import InputError
from sim.machine.edits import Edit

TARGETS = ("compute", "communication", "copy", "launch", "lag")
NUMBERS = ("rank", "stage", "microbatch", "layer", "step")
WORDS = ("kind", "dimension", "name", "stream", "phase")
FORM = (
    "an edit is 'TARGET * FACTOR', with 'where KEY=VALUE,... and ...' behind it if wanted, "
    "'link NAME * FACTOR' or 'remove stragglers'; several are separated by ';'"
)
_SCALE = re.compile(r"(?P<target>\w+)\s*(?P<sign>[*/])\s*(?P<by>[^\s]+)(\s+where\s+(?P<where>.+))?")
_LINK = re.compile(r"link\s+(?P<name>\w+)(\s+bandwidth)?\s*(?P<sign>[*/])\s*(?P<by>[^\s]+)")


class Condition(NamedTuple):
    """A column of ops and the values that it may have."""

    key: str
    values: tuple[str | int, ...]


LEVEL = Edit("stragglers")
"""The edit after which no rank computes slower than its peers."""


def parse(text: str) -> list[Edit]:
    """Return the edits that a text asks for, and raise InputError where it is not an edit.

    >>> parse("compute * 0.8 where kind=attention and rank=0-2; link ib bandwidth * 2")[0].where[1]
    Condition(key='rank', values=(0, 1, 2))
    """
    edits = [_edit(" ".join(one.split())) for one in text.split(";") if one.strip()]
    if not edits:
        raise InputError(f"no edit in {text!r}; {FORM}")
    return edits


def _edit(text: str) -> Edit:
    if text == "remove stragglers":
        return LEVEL
    if found := _LINK.fullmatch(text):
        factor = _factor(found, text)
        if not factor:
            raise InputError(f"{text!r}: links without bandwidth never end; give more than 0")
        return Edit("link", found["name"], factor)
    found = _SCALE.fullmatch(text)
    if not found:
        raise InputError(f"{text!r} is no edit; {FORM}")
    if found["target"] not in TARGETS:
        raise InputError(
            f"{text!r}: {_unknown('target', found['target'], (*TARGETS, 'link NAME'))}"
        )
    conditions = re.split(r"\s+and\s+", found["where"]) if found["where"] else []
    return Edit(found["target"], tuple(_condition(c) for c in conditions), _factor(found, text))


MOST = 1e12
"""The largest factor that an edit may have."""


def _factor(found: re.Match[str], text: str) -> float:
    try:
        number = float(found["by"])
        factor = 1.0 / number if found["sign"] == "/" else number
    except (ValueError, ZeroDivisionError):
        factor = -1.0
    if not 0.0 <= factor <= MOST:
        raise InputError(
            f"{text!r}: {found['by']!r} gives no factor from 0 to {MOST:g}; give a number such "
            "as 0.8"
        )
    return factor


def _condition(text: str) -> Condition:
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not values:
        raise InputError(f"{text!r} is no condition; write KEY=VALUE, such as kind=gemm")
    if key not in NUMBERS + WORDS:
        raise InputError(_unknown("column", key, NUMBERS + WORDS))
    parts = [part.strip() for part in values.split(",")]
    if key in WORDS:
        return Condition(key, tuple(parts))
    return Condition(key, tuple(n for part in parts for n in _range(key, part)))


def _range(key: str, text: str) -> range:
    """Return the numbers that a text such as 3 or 0-7 names.

    >>> list(_range("rank", "2-4"))
    [2, 3, 4]
    """
    found = re.fullmatch(r"(\d{1,9})(-(\d{1,9}))?", text)
    if not found:
        raise InputError(f"no {key} {text!r}; give a number, or first-last")
    return range(int(found[1]), int(found[3] or found[1]) + 1)


def _unknown(what: str, name: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(name, known, 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return f"no {what} {name!r}, there are {', '.join(known)}{meant}"
