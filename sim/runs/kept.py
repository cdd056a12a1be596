"""What several runs in one process have in common is made once: the last few are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import fields
from typing import Generic, TypeVar

from sim.builder.job import Job
from sim.machine.assumed import changed

Found = TypeVar("Found")


class Kept(Generic[Found]):
    """What was found for the last ``most`` keys, where it is ``small``; nobody may change it.

    >>> kept = Kept[list[int]](most=1)
    >>> kept.of("a", lambda: [1]) is kept.of("a", lambda: [2])
    True
    >>> kept.of("b", lambda: [3]), kept.of("a", lambda: [4])
    ([3], [4])
    """

    def __init__(self, most: int, small: Callable[[Found], bool] = lambda _: True) -> None:
        self._most, self._small, self._known = most, small, OrderedDict[Hashable, Found]()

    def of(self, key: Hashable, find: Callable[[], Found]) -> Found:
        """Return what is known for ``key``, or else what is found now."""
        found = self._known.pop(key, None)
        if found is None:
            found = find()
        if not self._small(found):
            return found
        self._known[key] = found
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return found


def alike(job: Job, *but: str) -> Hashable:
    """Return what is equal for jobs of equal fields, ``but`` those, where the same is assumed."""
    mine = {one.name: getattr(job, one.name) for one in fields(job) if one.name not in but}
    if "plan" in mine:
        mine["plan"] = tuple(map(tuple, job.plan))
    return *mine.values(), changed()
