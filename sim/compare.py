"""The same job in several ways: other schedules, or other values of a key, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import schedules
from sim.engine import DeadlockError
from sim.runs import Result, run

Overrides = Mapping[str, object]
Report = Callable[[str, int, int], object]
"""Called with what is being simulated, and how many are done of how many."""


@dataclass(frozen=True, eq=False)
class Way:
    """One way of running the job: its result, or why it cannot run."""

    name: str
    result: Result | None
    refused: str = ""


def compare(
    recipe: str | Path, ways: Mapping[str, Overrides], report: Report = lambda *_: None
) -> list[Way]:
    """Run a recipe once with each of the overrides; what cannot run is a row with its reason."""
    out = []
    for k, (name, overrides) in enumerate(ways.items()):
        report(name, k, len(ways))
        try:
            out.append(Way(name, run(recipe, overrides)))
        except (ValueError, DeadlockError) as error:
            out.append(Way(name, None, str(error).splitlines()[0]))
    return out


def by_schedule(names: Sequence[str], overrides: Overrides | None = None) -> dict[str, Overrides]:
    """A way for each schedule (``["all"]``: each that there is), with stages split evenly.

    Raises ValueError for a name that is none of a schedule.
    """
    known = schedules.names()
    chosen = known if list(names) == ["all"] else list(names)
    for name in chosen:
        if name not in known:
            raise ValueError(f"no schedule {name!r}; there are {', '.join(known)}, or all")
    own: dict[str, object] = {"schedule.chunks": None, "schedule.layers_per_stage": None}
    return {name: {**own, **(overrides or {}), "schedule.name": name} for name in chosen}


def by_value(
    vary: Mapping[str, Sequence[object]], overrides: Overrides | None = None
) -> dict[str, Overrides]:
    """A way for each combination of values: ``{"parallelism.tp": [4, 8]}``.

    >>> list(by_value({"parallelism.tp": [4, 8], "parallelism.sp": [True]}))
    ['tp=4 sp=True', 'tp=8 sp=True']
    """
    out: dict[str, Overrides] = {}
    for values in product(*vary.values()):
        chosen = dict(zip(vary, values, strict=True))
        name = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in chosen.items())
        out[name] = {**(overrides or {}), **chosen}
    return out
