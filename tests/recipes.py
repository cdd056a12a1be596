"""Recipes and runs of them: a model, a batch, and what a test says beyond that."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from sim.graph import Graph
from sim.machine.cluster import load
from sim.recipe import recipe_file
from sim.recipe.recipe import Recipe
from sim.runs.run import Result, job_of, prepare, run

Keys = Mapping[str, Any]
NARROW = {"layers": 4, "hidden": 512, "heads": 8, "vocab": 1024, "sequence": 512}
NARROW |= {"attention": "flash", "dropout": 0.0}
DEEP = NARROW | {"layers": 8, "hidden": 256, "heads": 4, "vocab": 512, "sequence": 256}


def tables(
    model: Keys, batch: int, *perturbed: Keys, gpus: int = 0, topology: object = "dgx_h100",
    schedule: Keys | None = None, training: Keys | None = None, simulation: Keys | None = None,
    **parallelism: Any,
) -> dict[str, Any]:  # fmt: skip
    """The tables of a recipe; of as many GPUs as the degrees make, if none are given."""
    degrees = prod(parallelism.get(axis, 1) for axis in ("tp", "cp", "pp", "dp"))
    return {
        "model": {**model},
        "cluster": {"topology": str(topology), "gpus": gpus or degrees},
        "parallelism": parallelism,
        "schedule": {**(schedule or {})},
        "training": {"global_batch": batch, **(training or {})},
        "perturbations": [*perturbed],
        "simulation": {**(simulation or {})},
    }


def parsed(model: Keys, batch: int, *perturbed: Keys, **others: Any) -> Recipe:
    """The recipe of these tables."""
    return recipe_file.parse(tables(model, batch, *perturbed, **others))


def ran(model: Keys, batch: int, *perturbed: Keys, **others: Any) -> Result:
    """Its run."""
    return run(parsed(model, batch, *perturbed, **others))


def built(of: Recipe) -> Graph:
    """The graph that a run of it would simulate."""
    cluster = load(of.cluster.topology, of.cluster.gpus)
    return prepare(job_of(of, cluster), cluster)[1]


SEARCHED = """
[model]
layers = 4
hidden = 64
heads = 4
vocab = 512
sequence = 4096
[cluster]
topology = "dgx_h100"
gpus = 4
[training]
global_batch = 8
"""
"""A small job of 4 GPUs, whose layouts are searched."""
