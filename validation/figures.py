"""Predicts published figures: one function of a recipe per kind of figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from sim.analysis.critical_path import critical_path
from sim.analysis.steps import steady
from sim.builder.activations import first_stage_bytes
from sim.machine import cluster as clusters
from sim.model.sizes import BYTES, parameters
from sim.recipe.recipe import Recipe
from sim.runs.check import check
from sim.runs.hosted import assumes_host
from sim.runs.run import job_of, run
from sim.runs.stage_times import stage_timelines
from sim.runs.summary import between, step_seconds
from sim.timeline import Timeline
from sim.whatif.interval import interval

ADAM = 12  # bytes per parameter: fp32 master weight, first and second moment


class StepTime(NamedTuple):
    """A step in seconds, its interval of 80 %, and what assumed values do to it."""

    seconds: float
    interval: tuple[float, float]
    moves: Mapping[str, tuple[float, float]]
    """By assumed value: the change of the step, a share of it, at the low and the high end."""


def step_time(recipe: Recipe) -> StepTime:
    """Return the time of a step; where steps overlap, of one in the steady state."""
    ran = run(recipe)
    found = steady(ran.timeline, *recipe.ramps)
    path = critical_path(found.timeline)
    seed, host = recipe.simulation.seed, assumes_host(recipe)
    within = interval(path, ran.machine, ran.boost, ran.cluster, seed, host)
    low, high = (end / found.steps + between(recipe) for end in within[:2])
    moves = {name: (a / found.seconds, b / found.seconds) for name, (a, b) in within.moves.items()}
    return StepTime(step_seconds(recipe, found), (low, high), moves)


def step(recipe: Recipe) -> float:
    """Return the seconds of a step; where steps overlap, of one in the steady state."""
    return step_seconds(recipe, steady(run(recipe).timeline, *recipe.ramps))


def fsdp_time_saved(recipe: Recipe) -> float:
    """Return the share of a step's time that the recipe's sharding saves over default FSDP1."""
    own = recipe.parallelism
    parallelism = type(own).model_validate({**own.model_dump(), "fsdp": {"kind": "fsdp1"}})
    return 1.0 - step(recipe) / step(recipe.model_copy(update={"parallelism": parallelism}))


def layer_timelines(recipe: Recipe, layers: int = 1) -> Mapping[str, Timeline]:
    """Return F, B, I and W of some layers of a recipe's model, each by itself on one rank."""
    job = job_of(recipe)
    cluster = clusters.load(recipe.cluster.topology, job.mesh.tp)
    if recipe.simulation.clock == "boost":
        cluster = clusters.at_boost(cluster)
    return stage_timelines(job, cluster, range(layers))


def layer(phase: str) -> Callable[[Recipe], float]:
    """Return a function: seconds of one layer, F or B with what it recomputes."""
    return lambda recipe: layer_timelines(recipe)[phase].seconds


def middle_stage(phase: str) -> Callable[[Recipe], float]:
    """Return a function: seconds of the second stage, without embedding or head; F, I or W."""

    def seconds(recipe: Recipe) -> float:
        layers = job_of(recipe).layers_per_stage[1]
        return layer_timelines(recipe, layers)[phase].seconds

    return seconds


def state(recipe: Recipe) -> float:
    """Return the bytes of weights, gradients and optimizer of one rank's layers, without ZeRO."""
    job = job_of(recipe)
    layers = range(job.model.layers // job.mesh.pp)
    held = parameters(job.model, job.parallelism.tp, layers, first=False, last=False).total
    return float(held * (BYTES[job.training.dtype] + BYTES[job.training.grad_dtype] + ADAM))


def activations(recipe: Recipe) -> float:
    """Return the bytes of the layers' activations on the first pipeline rank at the peak."""
    job = job_of(recipe)
    pipeline = job.mesh.pp
    return first_stage_bytes(job, pipeline, job.stages // pipeline)


def peak(recipe: Recipe) -> float:
    """Return the bytes at the peak of the rank that needs most."""
    return float(max(entry["peak_bytes"] for entry in check(recipe)["memory"]))


def peak_last(recipe: Recipe) -> float:
    """Return the bytes that the last pipeline rank holds at its peak."""
    return float(check(recipe)["memory"][-1]["peak_bytes"])


FIGURES: Mapping[str, Callable[[Recipe], float | StepTime]] = {
    "step": step_time,
    "fsdp_time_saved": fsdp_time_saved,
    "layer_forward": layer("F"),
    "layer_backward": layer("B"),
    "stage_F": middle_stage("F"),
    "stage_I": middle_stage("I"),
    "stage_W": middle_stage("W"),
    "state": state,
    "activations": activations,
    "peak": peak,
    "peak_last": peak_last,
}
"""Each function by the name that tables give it; in seconds or bytes, or a share."""
