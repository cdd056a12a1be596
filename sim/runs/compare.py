"""The same job run in several ways: with other schedules, or other values of a key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType

import schedules
from schedules.input_error import InputError
from schedules.user_code import is_path
from sim.engine import DeadlockError
from sim.html import Shown, table
from sim.recipe.legality import even
from sim.recipe.order_file import NAME
from sim.recipe.recipe import Recipe
from sim.runs.run import Result, run

Overrides = Mapping[str, object]
Report = Callable[[str, int, int], object]
"""A function to call with what is simulated now, how many are done, and how many there are."""


@dataclass(frozen=True, eq=False)
class Way(Shown):
    """One way of running a recipe (some keys set anew): its result, or why it cannot run."""

    name: str
    result: Result | None
    refused: str = ""

    def _repr_html_(self) -> str:
        """Return the result, or the reason why there is none, for a notebook."""
        shown = self.result._repr_html_() if self.result else table(self.refused, ())
        return table(self.name, ()) + shown


def compare(
    recipe: str | Path,
    ways: Mapping[str, Overrides],
    report: Report = lambda *_: None,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> list[Way]:
    """Run a recipe once with each of the overrides; one that cannot run has its reason.

    ``refused`` has the reasons, by name, of those that are not to run at all.
    """
    out = []
    for k, (name, overrides) in enumerate(ways.items()):
        if name in refused:
            out.append(Way(name, None, refused[name]))
            continue
        report(name, k, len(ways))
        try:
            out.append(Way(name, run(recipe, overrides)))
        except (InputError, DeadlockError) as error:
            out.append(Way(name, None, str(error).splitlines()[0]))
    return out


def by_schedule(
    names: Sequence[str], base: Recipe, overrides: Overrides | None = None
) -> dict[str, Overrides]:
    """Return ways to run a recipe, by name: one per schedule (``["all"]`` takes every schedule).

    A way is the keys that it sets, over ``overrides``; :func:`compare` runs it. A recipe's own
    order, given by ``schedule.csv``, is named from_csv; the path of a file is a schedule too. Where
    the number of stages is that of ``base``, they keep its layers; elsewhere layers are spread
    evenly, until :func:`sim.runs.fair.balanced` balances them. Raises InputError for a name that is
    not a schedule.
    """
    own = base.schedule.name
    known = schedules.names() + [own] * (own == NAME or is_path(own))
    chosen = known if list(names) == ["all"] else list(names)
    for name in chosen:
        if name == NAME and name not in known:
            raise InputError(f"{NAME} is the order in schedule.csv, which the recipe does not give")
        if name not in known and not is_path(name):
            raise InputError(schedules.unknown(name, "a file of your own, ./NAME.py, or all"))
    paths = {name: str(Path(name).resolve()) for name in chosen if is_path(name)}
    named = {Path(name).name if name in paths else name: paths.get(name, name) for name in chosen}
    return {shown: {**(overrides or {}), **own_of(name, base)} for shown, name in named.items()}


def own_of(name: str, base: Recipe) -> Overrides:
    """Return the overrides that a schedule needs: its own chunks, and layers for its stages."""
    same = name == base.schedule.name
    takes = "chunks" in schedules.options(name)
    chunks = base.schedule.chunks if same else schedules.stages_per_rank(name)
    stages, layers = base.parallelism.pp * (chunks or 1), base.model.layers or 0
    fits = len(base.layers_per_stage) == stages
    split = list(base.layers_per_stage if fits else even(layers, stages))
    return {
        "schedule.name": name,
        "schedule.csv": base.schedule.csv if same else None,
        "schedule.group": base.schedule.group if same else None,
        "schedule.overlap": base.schedule.overlap if same else None,
        "schedule.chunks": chunks if takes else None,
        "schedule.layers_per_stage": split,
    }


def by_value(
    vary: Mapping[str, Sequence[object]], overrides: Overrides | None = None
) -> dict[str, Overrides]:
    """Return ways to run a recipe, by name: one per combination of values.

    >>> list(by_value({"parallelism.tp": [4, 8], "parallelism.sp": [True]}))
    ['tp=4 sp=True', 'tp=8 sp=True']
    """
    out: dict[str, Overrides] = {}
    for values in product(*vary.values()):
        chosen = dict(zip(vary, values, strict=True))
        name = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in chosen.items())
        out[name] = {**(overrides or {}), **chosen}
    return out
