"""The measured runs that are most like a job, and how far off their predictions are.

``measured.csv`` holds every published step time that is predicted. ``python -m
validation.measured`` writes it from ``validation/results.md``. The distance of a run counts

- 1 for each doubling of the GPU's peak in bf16, and a half if it has another name;
- 2 if the parameters are sharded (FSDP, ZeRO-3) in one job alone, 1 if a pipeline is in one alone;
- 1 for each doubling of the model's parameters, and a half for each doubling of the GPUs;
- 1 if only one of both multiplies in fp8.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from io import StringIO
from math import log2
from typing import Any, NamedTuple

from sim.builder.job import without_plan
from sim.machine.cluster import Gpu
from sim.model.sizes import parameters
from sim.recipe.legality.products import dtypes
from sim.recipe.recipe import Recipe

MOST = 3


class Job(NamedTuple):
    """What of a job counts for its distance to another."""

    gpu: str
    peak: float  # FLOP/s in bf16
    gpus: int
    parameters: float
    sharded: bool
    pipeline: bool
    fp8: bool


class MeasuredRun(NamedTuple):
    """A published step time: what ran, of which family, and the error of its prediction."""

    row: str  # that of the results
    name: str
    family: str
    job: Job
    error: float  # share of the measured step time


def job_of(recipe: Recipe, gpu: Gpu) -> Job:
    """Return a recipe as distances see it; its GPU's name goes up to the first hyphen."""
    model, split = recipe.architecture, recipe.parallelism
    held = parameters(model, 1, range(model.layers), first=True, last=True).total
    return Job(
        gpu.name.partition("-")[0],
        gpu.peak["bf16"],
        recipe.cluster.gpus,
        float(held),
        without_plan(recipe).data.sharding is not None,
        split.pp > 1,
        "fp8" in dtypes(recipe).values(),
    )


def distance(one: Job, other: Job) -> float:
    """Return how unlike two jobs are.

    >>> job = Job("H100", 1e15, 64, 7e10, False, True, False)
    >>> distance(job, job._replace(gpus=128, fp8=True))
    1.5
    """
    return (
        abs(log2(one.peak / other.peak))
        + 0.5 * (one.gpu != other.gpu)
        + 2.0 * (one.sharded != other.sharded)
        + 1.0 * (one.pipeline != other.pipeline)
        + abs(log2(one.parameters / other.parameters))
        + 0.5 * abs(log2(one.gpus / other.gpus))
        + 1.0 * (one.fp8 != other.fp8)
    )


@cache
def measured() -> tuple[MeasuredRun, ...]:
    """Return every measured run of the table."""
    text = (files("sim.runs") / "measured.csv").read_text(encoding="utf-8")
    return tuple(_run(row) for row in csv.DictReader(StringIO(text)))


def _run(row: Mapping[str, str]) -> MeasuredRun:
    flags = (row[key] == "yes" for key in ("sharded", "pipeline", "fp8"))
    sizes = float(row["peak"]), int(row["gpus"]), float(row["parameters"])
    return MeasuredRun(
        row["row"],
        row["run"],
        row["family"],
        Job(row["gpu"], *sizes, *flags),
        float(row["error"]),
    )


def nearest(recipe: Recipe, gpu: Gpu, most: int = MOST) -> list[dict[str, Any]]:
    """Return the nearest measured runs, nearest first: name, row, family, error and distance."""
    job = job_of(recipe, gpu)
    found = sorted(measured(), key=lambda run: (distance(job, run.job), run.name))
    return [
        {
            "run": run.name,
            "row": run.row,
            "family": run.family,
            "error": run.error,
            "distance": round(distance(job, run.job), 2),
        }
        for run in found[:most]
    ]
