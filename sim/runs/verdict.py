"""The answer first: what a job is in one sentence, and what came out in another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sim import strategies, units
from sim.analysis.words import interval
from sim.machine.cluster import Cluster
from sim.memory.runtime import needed
from sim.model.sizes import parameters
from sim.recipe.recipe import Recipe

AXES = ("tp", "cp", "ep", "etp", "pp", "dp")


def job(recipe: Recipe, cluster: Cluster) -> str:
    """Return what a job is: model, parameters, GPUs, layout, schedule, batch and dtype."""
    model, training = recipe.architecture, recipe.training
    size = parameters(model, 1, range(model.layers), first=True, last=True).total
    return "; ".join(
        (
            f"{name(recipe)}, {size / 1e9:.3g}B parameters, on {recipe.cluster.gpus:,} "
            f"{cluster.gpu.name} ({recipe.cluster.topology})",
            split(recipe),
            f"batch {training.global_batch:,} x {_sample(recipe)}, {_microbatches(recipe)}",
            training.matmul or training.dtype,
        )
    )


def name(recipe: Recipe) -> str:
    """Return the name of a recipe's model."""
    return recipe.model.preset or recipe.model.name or "a model of its own"


def split(recipe: Recipe) -> str:
    """Return how a job is split, what features it uses of those that change a layout, its plan."""
    p = recipe.parallelism
    degrees = [f"{axis} {n}" for axis in AXES if (n := getattr(p, axis)) and n > 1]
    zero = [f"ZeRO-{p.zero}"] * bool(p.zero)
    plan = [recipe.schedule.name] * (p.pp > 1)
    return ", ".join([*degrees, *zero, *_features(recipe), *plan]) or "one GPU"


def _features(recipe: Recipe) -> Iterator[str]:
    """Yield a word for each key that a search would vary and that is set, such as sp or fsdp2."""
    for key in dict.fromkeys(key for of in strategies.declared("TRIED") for key in of):
        section, _, name = key.partition(".")
        value = getattr(getattr(recipe, section), name)
        if value is True:
            yield name
        elif isinstance(value, str):
            yield from [f"{name} {value}"] * (value != "none")
        elif kind := getattr(value, "kind", None):
            yield str(kind)
        elif value:
            yield name


def _sample(recipe: Recipe) -> str:
    images = recipe.architecture.resnet
    return "1 image" if images else f"{recipe.architecture.sequence:,} tokens"


def _microbatches(recipe: Recipe) -> str:
    count = recipe.microbatches
    return f"{count:,} microbatch{'es' * (count != 1)} of {recipe.training.micro_batch}"


def answer(summary: Mapping[str, Any], capacity: float) -> str:
    """Return what a run says: step, interval, MFU, whether it fits, how good predictions near are.

    ``summary`` is that of ``summary.json``, ``capacity`` the bytes of a GPU.
    """
    errors = ", ".join(f"{100 * run['error']:+.1f} %" for run in summary["nearest_measured"])
    return "; ".join(
        (
            f"{units.seconds(summary['step_time_s'])} a step (80 %: {interval(summary)})",
            f"MFU {summary['mfu']:.1%}",
            room(summary["memory"], capacity),
            *([f"the nearest measured runs were predicted {errors} off"] if errors else []),
        )
    )


def room(memory: Sequence[Mapping[str, Any]], capacity: float) -> str:
    """Return whether every rank fits, and the one that needs most.

    >>> room([{"rank": 2, "peak_bytes": 3.0 * 2**30}], 4.0 * 2**30)
    'fits: rank 2 needs most, 3.00 of 4.00 GiB'
    """
    most = max(memory, key=needed)
    need, of = needed(most) / 2**30, capacity / 2**30
    fits = "fits" if needed(most) <= capacity else "does not fit"
    return f"{fits}: rank {most['rank']} needs most, {need:.2f} of {of:.2f} GiB"
