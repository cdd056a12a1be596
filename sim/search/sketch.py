"""What is known of a layout before it is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from sim.builder.job import Job, without_plan
from sim.machine.cluster import Cluster
from sim.recipe.recipe import Recipe
from sim.search.plans import Lines, lines
from sim.search.prices import Prices, prices
from sim.search.stages import Cost, Look, costs, looks


class Sketch(NamedTuple):
    """What is known of a layout without a simulation, for its bounds of time and of memory."""

    recipe: Recipe
    job: Job  # its plan says only which rank has which stages
    order: Lines | None  # None where it depends on the times of stages
    looks: Sequence[Look]
    costs: Sequence[Cost]
    prices: Prices

    @classmethod
    def of(cls, recipe: Recipe, cluster: Cluster) -> Sketch:
        """Find it; raises InputError for an order that cannot run."""
        job, order, of = without_plan(recipe), lines(recipe), prices(cluster)
        if order is not None:
            job = replace(job, plan=order.skeleton)
        each = looks(job)
        return cls(recipe, job, order, each, costs(job, of, each), of)
