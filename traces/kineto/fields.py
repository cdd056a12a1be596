"""The fields of a profiler's event that are read, and the type of each: one table for all.

A field that is not there, or null, says nothing: -1, "" or an empty table. One of another type, or
a number that no clock or counter has, is :class:`Wrong`; its event is left out and counted.
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
"""Nanoseconds, 73 years: sums of three such fit into 64 bits."""
MOST = 2**62
"""Above any counter, stream or thread; two of them summed fit into 64 bits."""
MOST_RANKS = 1 << 20
_WHOLE = re.compile(r"-?\d{1,18}(?!\d)")


class Wrong(Exception):  # noqa: N818  (it never leaves the reader)
    """A field's value has another type than the field, in words."""


def get(of: Mapping[str, Any], key: str) -> Any:
    """The field of an event or of its args, in its type. Raises Wrong.

    >>> get({"stream": "stream 7"}, "stream"), get({}, "dur"), get({"name": None}, "name")
    (7, 0, '')
    """
    found = of.get(key, 0 if key in TIMES else None)
    try:
        return FIELDS[key](found)
    except (ArithmeticError, TypeError, ValueError):
        raise Wrong(f"{key} is {described(found)}, where {WANTED[FIELDS[key]]} would do") from None


def nanoseconds(microseconds: Any) -> int:
    """Microseconds as written, int or Decimal, in whole nanoseconds. Raises ValueError.

    >>> nanoseconds(Decimal("1712195495519689.047")), nanoseconds(12)
    (1712195495519689047, 12000)
    """
    if isinstance(microseconds, bool | str | list | tuple):
        raise TypeError("time")
    if not abs(microseconds) < LONGEST // 1000:
        raise ValueError("time")
    if isinstance(microseconds, int):
        return 1000 * microseconds
    return int((Decimal(microseconds) * 1000).to_integral_value())


def whole(of: Any) -> int:
    """An integer, or the first in a text such as "stream 7"; -1 where there is none."""
    if of is None:
        return -1
    if isinstance(of, str):
        found = _WHOLE.search(of)
        return int(found[0]) if found else -1
    if isinstance(of, bool) or not abs(of) < MOST or of != int(of):
        raise ValueError("whole")
    return int(of)


def below_most_ranks(of: Any) -> int:
    """A rank, or a number of them."""
    if not (found := whole(of)) < MOST_RANKS:
        raise ValueError("ranks")
    return found


def text(of: Any) -> str:
    """A text; a number as one."""
    if of is None:
        return ""
    if isinstance(of, bool | list | dict):
        raise TypeError("text")
    return of if isinstance(of, str) else described(of)


def table(of: Any) -> dict[str, Any]:
    """A table."""
    if of is None:
        return {}
    if not isinstance(of, dict):
        raise TypeError("table")
    return of


def ranks(of: Any) -> tuple[int, ...]:
    """Ranks of a list or of the text of one; () when it was cut.

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
    """How many blocks a grid has; 0 where it is not said.

    >>> blocks([24, 1, 1]), blocks(None)
    (24, 0)
    """
    return math.prod(max(whole(size), 0) for size in listed(of)[:3]) if of else 0


def inputs(of: Any) -> list[str]:
    """The texts of a list, or of the text of one; nothing where it is neither."""
    if isinstance(of, str):
        of = (decoded(of) or ([],))[0]
    return [text(one) if not isinstance(one, list) else "[]" for one in listed(of)]


def listed(of: Any) -> list[Any]:
    """A list."""
    if of is None:
        return []
    if not isinstance(of, list):
        raise TypeError("list")
    return of


def decoded(of: str, at: int = 0) -> tuple[Any, int] | None:
    """The value of a JSON text that begins at ``at``, and where it ends; None where it is none."""
    try:
        return DECODER.raw_decode(of, at)
    except (ValueError, RecursionError):
        return None


def _integer(digits: str) -> int | Decimal:
    """Python makes no int of more than 4,300 digits."""
    return int(digits) if len(digits) < 100 else Decimal(digits)


DECODER = json.JSONDecoder(parse_float=Decimal, parse_int=_integer, strict=False)
"""Numbers as :mod:`ijson` has them, of any length."""
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
"""What each field is, by its name: in an event, in its args, beside the events."""
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
"""What would do, in words."""
