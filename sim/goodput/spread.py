"""Several runs of one job: means, how far apart they are, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, sqrt
from typing import Any

from sim.goodput.inputs import Spec, nodes_of
from sim.goodput.process import PARTS, Outcome
from sim.recipe.recipe import Recipe

Runs = Mapping[int, Sequence[Outcome]]
"""Outcomes by the steps between checkpoints."""


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return fsum(values) / len(values)


def between(values: Sequence[float]) -> dict[str, float]:
    """Return the mean of some runs, its standard error, and where 90 % of the runs lie.

    >>> between([1.0, 2.0, 3.0])
    {'mean': 2.0, 'error': 0.5773502691896257, 'p5': 1.1, 'p95': 2.9}
    """
    middle, n = mean(values), len(values)
    squares = fsum((value - middle) ** 2 for value in values)
    error = sqrt(squares / (n - 1) / n) if n > 1 else 0.0
    return {
        "mean": middle,
        "error": error,
        "p5": quantile(values, 0.05),
        "p95": quantile(values, 0.95),
    }


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share lies, between the two nearest ones."""
    ordered, at = sorted(values), share * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def figures(runs: Sequence[Outcome], ideal: float) -> dict[str, Any]:
    """Return goodput, seconds and failures of runs that take ``ideal`` seconds without failures."""
    kinds = runs[0].failures
    return {
        "goodput": between([ideal / one.seconds for one in runs]),
        "seconds": between([one.seconds for one in runs]),
        "parts_s": {part: mean([one.parts[part] for one in runs]) for part in PARTS},
        "failures": {kind: mean([float(one.failures[kind]) for one in runs]) for kind in kinds},
    }


def bill(runs: Sequence[Outcome], recipe: Recipe, spec: Spec) -> dict[str, float]:
    """Return cost in USD and energy of the GPUs' boards in J, as far as the topology says them.

    Spare nodes cost as much as others. Boards draw their cap while steps run, those included that
    are lost, and else what they draw idle.
    """
    gpus, out = recipe.cluster.gpus, {}
    paid = (recipe.failures.spares or 0) * spec["node"]["gpus"] + nodes_of(recipe, spec) * min(
        spec["node"]["gpus"], gpus
    )
    whole = mean([one.seconds for one in runs])
    busy = mean(
        [fsum(one.parts[part] for part in PARTS[:2]) + one.parts["lost_work"] for one in runs]
    )
    if "price" in spec:
        out["cost_usd"] = spec["price"]["gpu_hour"] * paid * whole / 3600.0
    if watts := spec["costs"].get("power"):
        out["energy_j"] = gpus * (watts["cap"] * busy + watts["idle"] * (whole - busy))
    return out
