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
    """What a program changes: bytes in all, the most above its begin, and both place by place.

    A place is a category and a layer, counted from the first of the stage (-1: of none).
    """

    net: float
    most: float
    after: Mapping[tuple[str, int], float]
    at_most: Mapping[tuple[str, int], float]


class Held(NamedTuple):
    """What a rank holds at its peak besides what stays."""

    step: Step
    """In which the peak is."""
    places: Mapping[tuple[str, int, int, int], float]
    """Bytes by category, stage, microbatch and layer."""
    deferred: frozenset[tuple[int, int]]
    """Stages and microbatches whose I has run and whose W has not."""

    def by_category(self) -> dict[str, float]:
        """Bytes by category."""
        out: Counter[str] = Counter()
        for (category, *_), size in self.places.items():
            out[category] += size  # type: ignore[assignment]
        return {category: float(size) for category, size in out.items() if size}


def most_held(job: Job, steps: Sequence[Step], known: dict[object, Profile]) -> Held:
    """What is held, besides what stays, at the peak of a rank with these steps.

    ``known`` are the profiles of the job's programs found so far, to which others are added.
    """
    places = _places(steps) if job.data.split else [""] * len(steps)
    shapes = {stage: _shape(job, stage) for stage in {step.stage for step in steps}}
    left = _left(job, steps)
    kinds = [
        (shapes[step.stage], step.kind, place, there)
        for step, place, there in zip(steps, places, left, strict=True)
    ]
    for kind, step in zip(kinds, steps, strict=True):
        if kind not in known:
            layers = job.layers(step.stage)
            known[kind] = _profile(_program(job, step.stage, *kind[1:]), layers.start)
    net: NDArray[np.float64] = np.array([known[kind].net for kind in kinds])
    most = np.array([known[kind].most for kind in kinds])
    k = int(np.argmax(np.cumsum(net) - net + most))
    held: Counter[tuple[str, int, int, int]] = Counter()
    for step, kind in zip(steps[: k + 1], kinds, strict=False):
        of = known[kind].at_most if step is steps[k] else known[kind].after
        first = job.layers(step.stage).start
        for (category, layer), size in of.items():
            place = (category, step.stage, step.microbatch, layer + first if layer >= 0 else -1)
            held[place] += size  # type: ignore[assignment]
    return Held(steps[k], held, _deferred(steps[:k]))


def _deferred(steps: Sequence[Step]) -> frozenset[tuple[int, int]]:
    ran = {kind: {(s.stage, s.microbatch) for s in steps if s.kind == kind} for kind in "IW"}
    return frozenset(ran["I"] - ran["W"])


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


def _left(job: Job, steps: Sequence[Step]) -> list[bool]:
    """Before which steps parameters are gathered already, left by a backward."""
    if not (job.data.keeps_behind_backward and job.overlapping):
        return [False] * len(steps)
    stages, kinds = [step.stage for step in steps], [step.kind for step in steps]
    return gathering.left_gathered(stages, kinds)


def _program(job: Job, stage: int, kind: str, place: str, gathered: bool) -> Program:
    layers, first, last = job.layers(stage), stage == 0, stage == job.stages - 1
    program = stage_programs(job.model, job.setting, layers, first, last)[kind]
    if not job.data.split:
        return program
    step = gathering.Step(kind, place, job.overlapping, gathered)
    full = buckets(program, job.held(stage), job.data) if kind in "BW" else ()
    return gathering.shard(program, step, stage_units(job, stage), job.data, full)


def _profile(program: Program, first: int) -> Profile:
    total, most, now = 0.0, 0.0, Counter[tuple[str, int]]()
    at_most: Mapping[tuple[str, int], float] = {}
    for item in program:
        layer = item.layer - first if item.layer >= 0 else -1
        for at in ("start", "end"):
            for change in item.memory:
                if change.at == at:
                    now[change.category, layer] += change.bytes  # type: ignore[assignment]
                    total += change.bytes
            if at == "start" and total > most:
                most, at_most = total, dict(now)
    return Profile(total, most, dict(now), at_most)
