"""The kinds of a model's layers, as a config.json tells them: by a list, or by a period.

A family's table (see :mod:`sim.recipe.families`) has ``lists``, keys of lists of ``words`` or of a
text of letters, of which the first that is given counts; else two ``kinds``, the second of which
has one layer of each ``period``: the last, or that at ``offset``. ``places`` is a key that lists
the layers of the second kind instead, ``except`` has keys that list those of a kind. ``window`` is
the key of a window or chunk; where it is null, all layers are full.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from schedules.input_error import InputError

MOST_LAYERS = 10_000
"""More are refused with the other numbers, before their list is made."""
Table = Mapping[str, Any]


def kinds(of: Table, stated: Table, layers: int) -> list[str]:
    """Return the kinds of so many layers; 0: of as many as the file lists.

    Raises InputError for a list that is none of the model's layers.
    """
    return _listed(of, stated, layers) or _periodic(of, stated, layers)


def shortest(found: Sequence[str]) -> list[str]:
    """Return the shortest list that gives these kinds over and over, twice at least, or them.

    >>> shortest(["sliding", "full", "sliding", "full", "sliding"])
    ['sliding', 'full']
    """
    periods = (n for n in range(1, len(found) // 2 + 1) if found[n:] == found[:-n])
    return list(found[: next(periods, len(found))])


def shown(value: object) -> str:
    """Return a value of the file as it is written there, or its beginning."""
    try:
        said = json.dumps(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too long to show"
    return said if len(said) <= 60 else f"{said[:57]}..."


def _listed(of: Table, stated: Table, layers: int) -> list[str]:
    """Return the kinds of the first list that is given."""
    for key in of.get("lists", ()):
        if not (said := stated.get(key)):
            continue
        if not isinstance(said, list | str) or len(said) != (layers or len(said)):
            raise InputError(f"{key} must have an entry for each of {layers} layers")
        known = of["words"]
        for word in said:
            if not isinstance(word, str | int) or str(word) not in known:
                there = ", ".join(known)
                raise InputError(f"{key} has {shown(word)}; there are {there}")
        return [known[str(word)] for word in said]
    return []


def _periodic(of: Table, stated: Table, layers: int) -> list[str]:
    """Return the kinds that a period, or a list of places, gives."""
    if "kinds" not in of:
        return []
    usual, other = of["kinds"]
    period = _whole(stated, of["period"], 1)
    offset = _whole(stated, of.get("offset", period - 1), 0)
    found = [other if i % period == offset else usual for i in range(layers)]
    if "places" in of and stated.get(of["places"]) is not None:
        found = _placed([usual] * layers, stated, of["places"], other)
    for key, kind in of.get("except", {}).items():
        found = _placed(found, stated, key, kind)
    return found


def _placed(found: Sequence[str], stated: Table, key: str, kind: str) -> list[str]:
    """Return the kinds with that of the layers that a key lists."""
    places = stated.get(key) or []
    if not isinstance(places, list) or not all(type(i) is int for i in places):
        raise InputError(f"{key} = {shown(places)} must be a list of whole numbers")
    return [kind if i in set(places) else usual for i, usual in enumerate(found)]


def _whole(stated: Table, key: str | int, least: int) -> int:
    """Return a number that is given by its key or itself."""
    value = stated.get(key) if isinstance(key, str) else key
    if type(value) is not int or value < least:
        raise InputError(f"{key} = {shown(value)} must be a whole number of {least} or more")
    return value
