"""The order of a pipeline in columns: what a lower bound reads of it, for one shape at a time."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

import schedules
from schedules import Pair, Plan, Step, flat
from sim.recipe.recipe import Recipe
from sim.runs.kept import Kept

Longs = NDArray[np.int64]
KINDS = "FBIW"


@dataclass(frozen=True, eq=False)
class Lines:
    """The steps of each rank in order: their stages and their kinds, as numbers in KINDS."""

    stage: tuple[Longs, ...]
    kind: tuple[Longs, ...]
    paired: tuple[NDArray[np.bool_], ...]  # the forward of a pair, which the backward follows

    @cached_property
    def on(self) -> tuple[tuple[int, ...], ...]:
        """The stages of each rank, in ascending order."""
        return tuple(tuple(np.unique(stages).tolist()) for stages in self.stage)

    def count(self, q: int, stage: int, kinds: str, behind: str = KINDS) -> int:
        """Return how many steps of these kinds a rank runs of a stage.

        Only the first counts, and those right ``behind`` a step of such a kind of that stage.
        """
        own = [KINDS[k] for k in self.kind[q][self.stage[q] == stage].tolist()]
        pairs = zip([behind[0], *own], own, strict=False)
        return sum(one in kinds and before in behind for before, one in pairs)

    @cached_property
    def skeleton(self) -> Plan:
        """A plan in which each rank has a step of each of its stages, and no more."""
        return [[Step(stage, "F", 0) for stage in mine] for mine in self.on]

    @cached_property
    def owner(self) -> tuple[int, ...]:
        """The first rank that runs each stage."""
        first: dict[int, int] = {}
        for rank, mine in enumerate(self.on):
            for stage in mine:
                first.setdefault(stage, rank)
        return tuple(first[stage] for stage in sorted(first))


_lines = Kept[Lines](256)


def lines(recipe: Recipe) -> Lines | None:
    """Return the order of a recipe's pipeline; None where it depends on the times of stages.

    Raises InputError for an order from a file that cannot run.
    """
    name = recipe.schedule.name
    if schedules.takes_times(name) or recipe.schedule.csv:
        return None
    key: Hashable = (name, recipe.parallelism.pp, recipe.planned, *recipe.options.items())
    return _lines.of(key, lambda: _of(recipe.plan({})))


def _of(plan: Plan) -> Lines:
    rows = flat(plan)
    kinds = {kind: k for k, kind in enumerate(KINDS)}
    return Lines(
        tuple(np.array([step.stage for step in row], np.int64) for row in rows),
        tuple(np.array([kinds[step.kind] for step in row], np.int64) for row in rows),
        tuple(np.array(_paired(items), np.bool_) for items in plan),
    )


def _paired(items: list[Step | Pair]) -> list[bool]:
    return [
        one for item in items for one in ((True, False) if isinstance(item, Pair) else (False,))
    ]
