"""What a GPU under load adds to a step: each effect switched on after those before it.

The first step has all kernels at boost clock, alone and alike on all GPUs. Each further one is
simulated with one effect more, so what an effect adds depends on those before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

from sim.analysis.steps import steady
from sim.machine import cluster as clusters
from sim.machine.cluster import Cluster
from sim.recipe.recipe import Recipe
from sim.runs.run import Report, run
from sim.runs.shared import cluster_of
from sim.runs.summary import step_seconds

EFFECTS = {
    "sustained": "sustained clock",
    "attention": "attention's kernel",
    "cap": "board's cap",
    "overlap": "communication beside kernels",
    "spread": "slowest GPU",
}
"""By name, in the order in which they are switched on: what each is."""


@dataclass(frozen=True)
class Explained:
    """A step at boost clock, and what each effect adds to it, in seconds."""

    boost: float
    added: Mapping[str, float]

    @property
    def predicted(self) -> float:
        """Seconds of the step with all effects."""
        return fsum([self.boost, *self.added.values()])


def explain(recipe: Recipe, report: Report = lambda *_: None) -> Explained:
    """Simulate a step with one effect more each time; those that change nothing run once.

    Raises InputError for a recipe that cannot run.
    """
    levels: list[float] = []
    known: list[tuple[Recipe, Cluster, float]] = []
    for k, (one, on) in enumerate(_stages(recipe)):
        report("explaining", k, 1 + len(EFFECTS))
        found = [seconds for r, c, seconds in known if r == one and c.gpu == on.gpu]
        levels.append(found[0] if found else _seconds(one, on))
        known.append((one, on, levels[-1]))
    added = {name: levels[k + 1] - levels[k] for k, name in enumerate(EFFECTS)}
    return Explained(levels[0], added)


def _stages(recipe: Recipe) -> list[tuple[Recipe, Cluster]]:
    """Return the recipe and the cluster with no effect, and with each effect more."""
    real = cluster_of(recipe)
    even = clusters.alike(real)
    alone = clusters.undisturbed(even)
    rated = clusters.rated(alone)
    own = [table for table in recipe.perturbations if table.gpu_spread is None]
    same = recipe.model_copy(update={"perturbations": own})
    usual = _with_usual_attention(same, real)
    return [
        (usual, clusters.at_boost(alone)),
        (usual, rated),
        (same, rated),
        (same, alone),
        (same, even),
        (recipe, real),
    ]


def _with_usual_attention(recipe: Recipe, cluster: Cluster) -> Recipe:
    """Return the recipe with the fused attention of Transformer Engine, if it has a fused one."""
    fused = recipe.model.attention not in (None, "unfused")
    if not fused or "flash" not in cluster.gpu.costs.get("attention", {}):
        return recipe
    model = recipe.model.model_copy(update={"attention": "flash"})
    return recipe.model_copy(update={"model": model})


def _seconds(recipe: Recipe, cluster: Cluster) -> float:
    ran = run(recipe, cluster=cluster)
    return step_seconds(recipe, steady(ran.timeline, *recipe.ramps))
