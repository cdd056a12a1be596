"""The memory of a rank, found by walking its programs.

Items are taken in issue order. Where parameters or gradients are split, a gather takes its memory
as early as it may start; a reduction gives its gradients back at once. What that leaves out:
gathers that start later, which need less, and reductions slower than the kernels beside them, which
need more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedules import Step
from sim.job import Job
from sim.program import Program
from sim.resident import stage_units
from sim.stage import stage_programs
from sim.strategies import gathering
from sim.strategies.data import buckets


class Profile(NamedTuple):
    """What a program changes: bytes in all, the most above its begin, and both by category."""

    net: float
    most: float
    after: Mapping[str, float]
    at_most: Mapping[str, float]


def most_held(job: Job, steps: Sequence[Step], known: dict[object, Profile]) -> dict[str, float]:
    """Bytes by category, besides what stays, at the peak of a rank with these steps.

    ``known`` are the profiles of the job's programs found so far, to which others are added.
    """
    places = _places(steps) if job.data.split else [""] * len(steps)
    shapes = {stage: _shape(job, stage) for stage in {step.stage for step in steps}}
    kinds = [
        (shapes[step.stage], step.kind, place) for step, place in zip(steps, places, strict=True)
    ]
    for kind, step in zip(kinds, steps, strict=True):
        if kind not in known:
            known[kind] = _profile(_program(job, step.stage, *kind[1:]))
    net: NDArray[np.float64] = np.array([known[kind].net for kind in kinds])
    most = np.array([known[kind].most for kind in kinds])
    k = int(np.argmax(np.cumsum(net) - net + most))
    held = Counter(known[kinds[k]].at_most)
    for kind, count in Counter(kinds[:k]).items():
        for category, size in known[kind].after.items():
            held[category] += count * size  # type: ignore[assignment]
    return {category: float(size) for category, size in held.items() if size}


def _shape(job: Job, stage: int) -> object:
    """What tells stages with other programs apart."""
    return (*map(job.model.routed, job.layers(stage)), stage == 0, stage == job.stages - 1)


def _places(steps: Sequence[Step]) -> list[str]:
    """First of its stage on the rank, last of it, or neither."""
    places = [""] * len(steps)
    for stage in {step.stage for step in steps}:
        mine = [(k, step.kind) for k, step in enumerate(steps) if step.stage == stage]
        places[next(k for k, kind in mine if kind == "F")] = "first"
        places[[k for k, kind in mine if kind in "BW"][-1]] = "last"
    return places


def _program(job: Job, stage: int, kind: str, place: str) -> Program:
    layers, first, last = job.layers(stage), stage == 0, stage == job.stages - 1
    program = stage_programs(job.model, job.setting, layers, first, last)[kind]
    if not job.data.split:
        return program
    step = gathering.Step(kind, place, piped=job.overlapping)
    full = buckets(program, job.held(stage), job.data) if kind in "BW" else ()
    return gathering.shard(program, step, stage_units(job, stage), job.data, full)


def _profile(program: Program) -> Profile:
    total, most, now = 0.0, 0.0, Counter[str]()
    at_most: Mapping[str, float] = {}
    for item in program:
        for at in ("start", "end"):
            for change in item.memory:
                if change.at == at:
                    now[change.category] += change.bytes  # type: ignore[assignment]
                    total += change.bytes
            if at == "start" and total > most:
                most, at_most = total, dict(now)
    return Profile(total, most, dict(now), at_most)
