"""Ways of running a recipe made comparable: stages that are balanced, and equal memory.

A way is the keys that it sets, as in :mod:`sim.runs.compare`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from schedules.input_error import InputError
from sim import units
from sim.engine import DeadlockError
from sim.keys.refusals import show
from sim.recipe import recipe_file
from sim.recipe.recipe import Recipe
from sim.runs.balance import balance
from sim.runs.check import check
from sim.runs.compare import Overrides, Report
from sim.runs.run import load

LAYERS = "schedule.layers_per_stage"
MICRO_BATCH, RECOMPUTE = "training.micro_batch", "training.recompute"


class Fit(NamedTuple):
    """What makes a way fit: the keys that it sets, and what was chosen; or why it does not fit."""

    way: Overrides
    chosen: str = ""
    refused: str = ""


def kept_stages(recipe: str | Path, overrides: Overrides, base: Recipe) -> int:
    """Return the number of stages whose layers the recipe gives, or 0.

    ``base`` is the recipe with the ``overrides``.
    """
    return len(base.layers_per_stage) * recipe_file.gives(recipe, LAYERS, overrides)


def balanced(recipe: str | Path, way: Overrides, kept: int = 0) -> Overrides:
    """Return the way with the layers that suit its stages best by simulated runtime.

    Where it has ``kept`` stages, and where no layers are legal, it is the way itself.
    """
    given = way.get(LAYERS)
    if not isinstance(given, list) or len(given) == kept:
        return way
    try:
        return {**way, LAYERS: balance(load(recipe, way))}
    except InputError:  # told when it runs
        return way


def in_memory(
    recipe: str | Path,
    ways: Mapping[str, Overrides],
    limit: float,
    prepare: Callable[[Overrides], Overrides] = lambda way: way,
    report: Report = lambda *_: None,
) -> dict[str, Fit]:
    """Return what makes each way fit ``limit`` bytes on every rank, context and NCCL included.

    It is the largest micro-batch of the same global batch that fits. If none does, it is the
    smallest one with the least recomputation that fits: none, the attention core, the first layers
    of each stage, all. ``prepare`` is applied to each way that is tried.
    """
    out = {}
    for k, (name, way) in enumerate(ways.items()):
        report(f"memory of {name}", k, len(ways))
        out[name] = _fit(recipe, way, limit, prepare)
    return out


def _fit(
    recipe: str | Path, way: Overrides, limit: float, prepare: Callable[[Overrides], Overrides]
) -> Fit:
    try:
        base = load(recipe, way)
    except InputError:  # told when it runs
        return Fit(way)
    smallest, need = way, None
    for size in _micro_batches(base):
        tried = prepare({**way, MICRO_BATCH: size})
        if (found := _needed(recipe, tried)) is None:
            continue
        if found <= limit:
            return Fit(tried, f"micro_batch {size}")
        smallest, need = tried, found
    if need is None:
        return Fit(way)
    for recompute in _more(base):
        tried = prepare({**smallest, RECOMPUTE: recompute})
        need = _needed(recipe, tried) or need
        if need <= limit:
            return Fit(tried, f"micro_batch {tried[MICRO_BATCH]}, recompute {show(recompute)}")
    said = f"micro_batch {smallest[MICRO_BATCH]} with full recomputation needs {units.size(need)}"
    return Fit(way, refused=f"it does not fit {units.size(limit)}; {said}")


def _micro_batches(base: Recipe) -> Iterator[int]:
    """Yield the micro-batches that divide the samples of a replica, the largest first."""
    share = base.training.global_batch // (base.parallelism.dp or 1)
    return (size for size in range(share, 0, -1) if share % size == 0)


def _more(base: Recipe) -> list[object]:
    """Return more recomputation than the recipe has, least first."""
    now = base.training.model_dump()["recompute"]
    if now == "full":
        return []
    some = max(base.layers_per_stage) if isinstance(now, str) else 0
    block = [{"method": "block", "layers": n} for n in range(1, some)]
    return [*(["selective"] if now == "none" else []), *block, "full"]


def _needed(recipe: str | Path, way: Overrides) -> float | None:
    """Return the bytes of the rank that needs most, or None for a way that cannot run."""
    try:
        return max(float(entry["device_bytes"]) for entry in check(load(recipe, way))["memory"])
    except (InputError, DeadlockError):
        return None
