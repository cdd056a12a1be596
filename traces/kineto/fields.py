"""The fields of a profiler's event that are read, and the type of each: one table for all.

A field that is missing or null reads as -1, "" or an empty table. One of another type, or a number
that no clock or counter has, raises :class:`Wrong`; its event is left out and counted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from traces.checked import described

LONGEST = 2**61
"""Nanoseconds, 73 years; sums of three such numbers fit into 64 bits."""
MOST = 2**62
"""Above any counter, stream or thread; the sum of two such numbers fits into 64 bits."""
MOST_RANKS = 1 << 20
_LONGEST = LONGEST // 1000 * 1000
_WHOLE = re.compile(r"-?\d{1,18}(?!\d)")


class Wrong(Exception):  # noqa: N818  (it never leaves the reader)
    """A field's value has another type than the field; the message says which."""


def get(of: Mapping[str, Any], key: str) -> Any:
    """Return the field of an event or of its args, in its type. Raises Wrong.

    >>> get({"stream": "stream 7"}, "stream"), get({}, "dur"), get({"name": None}, "name")
    (7, 0, '')
    """
    found = of.get(key, 0 if key in TIMES else None)
    if type(found) is _AS_IS.get(key):  # nearly always: there are millions
        return found
    try:
        return FIELDS[key](found)
    except (ArithmeticError, TypeError, ValueError):
        raise Wrong(f"{key} is {described(found)}, where {WANTED[FIELDS[key]]} would do") from None


def nanoseconds(microseconds: Any) -> int:
    """Return microseconds as written, int or Decimal, in whole nanoseconds. Raises ValueError.

    >>> nanoseconds(Decimal("1712195495519689.047")), nanoseconds(12)
    (1712195495519689047, 12000)
    """
    if isinstance(microseconds, Decimal) and microseconds.adjusted() < 16:  # nearly always
        found = int((microseconds * 1000).to_integral_value())
        if -_LONGEST < found < _LONGEST:
            return found
    if isinstance(microseconds, bool | str | list | tuple):
        raise TypeError("time")
    if not abs(microseconds) < LONGEST // 1000:
        raise ValueError("time")
    if isinstance(microseconds, int):
        return 1000 * microseconds
    return int((Decimal(microseconds) * 1000).to_integral_value())


def whole(of: Any) -> int:
    """Return an integer, or the first one in a text such as "stream 7"; -1 if there is none."""
    if type(of) is int and -MOST < of < MOST:
        return of
    if of is None:
        return -1
    if isinstance(of, str):
        found = _WHOLE.search(of)
        return int(found[0]) if found else -1
    if isinstance(of, bool) or not abs(of) < MOST or of != int(of):
        raise ValueError("whole")
    return int(of)


def below_most_ranks(of: Any) -> int:
    """Return a rank, or a number of ranks."""
    if not (found := whole(of)) < MOST_RANKS:
        raise ValueError("ranks")
    return found


def text(of: Any) -> str:
    """Return a text; a number is written as one."""
    if of is None:
        return ""
    if isinstance(of, bool | list | dict):
        raise TypeError("text")
    return of if isinstance(of, str) else described(of)


def table(of: Any) -> dict[str, Any]:
    """Return a table."""
    if of is None:
        return {}
    if not isinstance(of, dict):
        raise TypeError("table")
    return of


def ranks(of: Any) -> tuple[int, ...]:
    """Return the ranks of a list, or of the text of one; () if that text was cut.

    >>> ranks("[0, 1, 2]"), ranks([4, 5]), ranks("[0, 1, ..., 63]")
    ((0, 1, 2), (4, 5), ())
    """
    if of is None:
        return ()
    if isinstance(of, str):
        of = [] if "..." in of else [int(rank) for rank in _WHOLE.findall(of)]
    found = tuple(whole(rank) for rank in of) if isinstance(of, list) else None
    if found is None or any(not 0 <= rank < MOST_RANKS for rank in found):
        raise ValueError("ranks")
    return found


def blocks(of: Any) -> int:
    """Return how many blocks a grid has; 0 where the file does not say.

    >>> blocks([24, 1, 1]), blocks(None)
    (24, 0)
    """
    return math.prod(max(whole(size), 0) for size in listed(of)[:3]) if of else 0


def inputs(of: Any) -> list[str]:
    """Return the texts of a list, or of the text of one; nothing where it is neither."""
    if isinstance(of, str):
        of = (decoded(of) or ([],))[0]
    return [text(one) if not isinstance(one, list) else "[]" for one in listed(of)]


def listed(of: Any) -> list[Any]:
    """Return a list."""
    if of is None:
        return []
    if not isinstance(of, list):
        raise TypeError("list")
    return of


def decoded(of: str, at: int = 0) -> tuple[Any, int] | None:
    """Return the JSON value that begins at ``at``, and where it ends; None if there is none."""
    try:
        return DECODER.raw_decode(of, at)
    except (ValueError, RecursionError):
        return None


def _integer(digits: str) -> int | Decimal:
    """Return an int, or a Decimal for many digits: Python makes no int of more than 4,300."""
    return int(digits) if len(digits) < 100 else Decimal(digits)


DECODER = json.JSONDecoder(parse_float=Decimal, parse_int=_integer, strict=False)
"""Reads numbers of any length, as :mod:`ijson` does."""
TIMES = {"ts", "dur"}
_OF_EVENTS: dict[str, Callable[[Any], Any]] = {
    "name": text, "ts": nanoseconds, "dur": nanoseconds, "pid": whole, "tid": whole, "args": table,
}  # fmt: skip
_OF_ARGS: dict[str, Callable[[Any], Any]] = {
    "device": whole, "stream": whole, "correlation": whole,
    "cuda_sync_kind": text, "wait_on_stream": whole, "wait_on_cuda_event_record_corr_id": whole,
    "Collective name": text, "Process Group Name": text, "Process Group Description": text,
    "Process Group Ranks": ranks, "Group size": whole, "Seq": whole, "Src Rank": whole,
    "Dst Rank": whole, "In msg nelems": whole, "Concrete Inputs": inputs, "grid": blocks,
}  # fmt: skip
_OF_FILES: dict[str, Callable[[Any], Any]] = {
    "baseTimeNanoseconds": whole, "distributedInfo": table, "rank": below_most_ranks,
    "world_size": below_most_ranks, "pg_config": listed, "pg_name": text, "ranks": ranks,
    "deviceProperties": listed, "numSms": whole,
}  # fmt: skip
FIELDS = {**_OF_EVENTS, **_OF_ARGS, **_OF_FILES}
"""The type of each field by its name: in an event, in its args, or beside the events."""
_OWN: dict[Callable[[Any], Any], type] = {text: str, table: dict}
_AS_IS = {key: _OWN.get(kind) for key, kind in FIELDS.items()}
"""The type whose values a field takes as they are, if there is one."""
WANTED = {
    nanoseconds: f"a number of microseconds below {LONGEST / 1000:.2g}",
    whole: f"a whole number below {MOST:.2g}",
    below_most_ranks: f"a whole number below {MOST_RANKS:,}",
    text: "a text",
    table: "a table",
    ranks: f"a list of ranks below {MOST_RANKS:,}",
    inputs: "a list of texts",
    blocks: "a list of whole numbers",
    listed: "a list",
}
"""What each type expects, in words for messages."""
