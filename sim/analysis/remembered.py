"""A helper of analyses: what several of them ask of one timeline or graph is found once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

Of = TypeVar("Of")
Found = TypeVar("Found")


def remembered(find: Callable[[Of], Found]) -> Callable[[Of], Found]:
    """Return ``find``, which then keeps what it returns for an argument as long as that lives.

    >>> class Place: ...
    >>> where, asked = Place(), []
    >>> once = remembered(lambda place: asked.append(place))
    >>> once(where), once(where), len(asked)
    (None, None, 1)
    """
    known: WeakKeyDictionary[Of, Found] = WeakKeyDictionary()

    @wraps(find)
    def found(of: Of) -> Found:
        if of not in known:
            known[of] = find(of)
        return known[of]

    return found
