"""Types of the fields that are read: a table for each kind of event, checked once."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from schedules.input_error import InputError

_NUMBERED = re.compile("[0-9]{1,9}")
LARGEST = 1e18
"""No time, size or count of anything on one GPU is larger; sums of many such numbers are finite."""


class FieldKind(NamedTuple):
    """What a field has to be."""

    words: str  # what is expected, for messages
    fits: Callable[[Any], bool]
    needed: bool = True

    def or_none(self) -> FieldKind:
        """Return the same kind for a field that may be missing."""
        return self._replace(needed=False)


def _is_number(of: Any) -> bool:
    return isinstance(of, int | float) and not isinstance(of, bool) and abs(of) <= LARGEST


def _is_whole(of: Any) -> bool:
    return isinstance(of, int) and not isinstance(of, bool) and abs(of) < 2**31


NUMBER = FieldKind(f"a number up to {LARGEST:g}", _is_number)
POSITIVE = FieldKind(f"a number from 0 to {LARGEST:g}", lambda of: _is_number(of) and of >= 0)
WHOLE = FieldKind("a whole number below 2^31", _is_whole)
COUNT = FieldKind("a whole number from 0 to 2^31", lambda of: _is_whole(of) and of >= 0)
SHORT = FieldKind("a whole number from -1 to 32,767", lambda of: _is_whole(of) and -1 <= of < 2**15)
FLAG = FieldKind("true or false", lambda of: isinstance(of, bool) or of in (0, 1))
LABEL = FieldKind("a text or a whole number", lambda of: isinstance(of, str | int))
TEXT = FieldKind("a text", lambda of: isinstance(of, str))
TABLE = FieldKind("a table", lambda of: isinstance(of, dict))
LIST = FieldKind("a list", lambda of: isinstance(of, list))


def list_of(kind: FieldKind) -> FieldKind:
    """Return the kind of a list in which each is of this kind."""
    return FieldKind(
        f"a list in which each is {kind.words}",
        lambda of: isinstance(of, list) and all(map(kind.fits, of)),
    )


def numbered(kind: FieldKind) -> FieldKind:
    """Return the kind of a table from whole numbers, written as texts, to this kind."""
    return FieldKind(
        f"a table of numbers, each {kind.words}",
        lambda of: (
            isinstance(of, dict)
            and all(map(_NUMBERED.fullmatch, of))
            and all(map(kind.fits, of.values()))
        ),
    )


def one_of(names: Collection[str]) -> FieldKind:
    """Return the kind of a text that is one of some."""
    return FieldKind(f"one of {', '.join(names)}", lambda of: isinstance(of, str) and of in names)


def row_of(*kinds: FieldKind) -> FieldKind:
    """Return the kind of a list that begins with one entry of each of these kinds."""
    return FieldKind(
        f"a list of {', '.join(kind.words for kind in kinds)}",
        lambda of: (
            isinstance(of, list)
            and len(of) >= len(kinds)
            and all(kind.fits(one) for kind, one in zip(kinds, of, strict=False))
        ),
    )


def check(of: Any, fields: Mapping[str, FieldKind], where: str) -> None:
    """Raise InputError, naming ``where`` and the field, for a field of another type."""
    if not isinstance(of, dict):
        raise InputError(f"{where} is {described(of)}, where a table would do")
    for key, kind in fields.items():
        if (kind.needed or key in of) and not kind.fits(of.get(key)):
            found = described(of[key]) if key in of else "missing"
            found += " of something else" if kind.words.startswith(found) else ""
            raise InputError(f"{where}: {key} is {found}, where {kind.words} would do")


def described(of: Any) -> str:
    """Return a value in words, at most 40 letters of it, however deep or long it is.

    >>> described([[1]]), described(None), described(10**6000)
    ('a list', 'null', 'an integer of 6,001 digits')
    """
    if of is None:
        return "null"
    if isinstance(of, dict | list | tuple):
        return "a table" if isinstance(of, dict) else "a list"
    if isinstance(of, int) and not isinstance(of, bool) and abs(of) >= 10**40:
        return f"an integer of {len(str(Decimal(abs(of)))):,} digits"
    return f"{of!r:.40}" if isinstance(of, str) else f"{of!s:.40}"
