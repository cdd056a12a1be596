"""Where the GPUs of a job meet, and what the slowest of those that meet adds to a step.

Each GPU has its speed (:mod:`sim.machine.spread`), which stays, so wherever GPUs meet, in every
layer or once per step, the same one comes last. Ranks that share layers (tp, cp, ep, and dp where
parameters are gathered layer by layer) are as slow as their slowest, a *group*. A pipeline takes
longer by a part of what its slowest group takes longer, and by what the others do for the rest of
the time, in which that one waits for them. Its replicas meet at the end of the step. So one factor
on all tensor work gives the expected step, and ranks that are alike stay folded.
"""

from __future__ import annotations

import math

import numpy as np

from schedules import Plan, stage_rank
from schedules.input_error import InputError
from schedules.search.timing import ends_of_several
from sim.builder.job import Job
from sim.graph import PHASES, Bools, Compute, Floats, Graph
from sim.machine.hardware import Machine
from sim.machine.spread import expected, slowed, tensor_works

DELAY = 0.1
"""The share by which a rank is slower when its weight in a plan is found."""
DIGITS = 6
"""Digits of a factor that count, so that the last bit of a time does not decide a timeline."""


def with_slowest(job: Job, sigma: float, graph: Graph, machine: Machine) -> Machine:
    """Return the machine whose tensor work takes what the slowest GPUs are expected to take.

    ``sigma`` is that of the speeds of GPUs, as a share; with 0 the machine itself comes back.
    """
    if not sigma or job.mesh.world == 1:
        return machine
    return slowed(machine, graph.works, round(factor(job, sigma, graph, machine), DIGITS))


def factor(job: Job, sigma: float, graph: Graph, machine: Machine) -> float:
    """Return the expected factor on the time of tensor work of the ranks that hold up the step."""
    pp, stages = job.mesh.pp, _stages(job, graph, machine)
    last = expected(sigma, job.mesh.world // pp, stages)
    if pp == 1:
        return last
    group = together(job)
    others = (pp * expected(sigma, group) - expected(sigma, group, stages)) / (pp - 1)
    weight = 1.0 if job.batch is not None else weight_of_one(job.plan)
    return weight * last + (1.0 - weight) * others


def together(job: Job) -> int:
    """Return how many ranks of a stage meet in every layer."""
    mesh, sharding = job.mesh, job.data.sharding
    dense = mesh.tp * mesh.cp
    sharing = [dense, mesh.ep * mesh.etp, dense * sharding.group if sharding else 1]
    return min(math.lcm(*sharing), mesh.world // mesh.pp)


def weight_of_one(plan: Plan) -> float:
    """Return by what share of its own delay a slow rank delays a plan: the mean over ranks.

    All stages take the same otherwise. The first, a middle and the last rank stand for all. It is 1
    where stages run on two ranks each, as in DualPipe.

    >>> from schedules import load
    >>> plan = load("one_f_one_b")(5, 12)  # (m - the ranks behind it) / (m + p - 1)
    >>> round(weight_of_one(plan), 9) == 10 / 16
    True
    """
    try:
        rank_of = stage_rank(plan)
    except InputError:
        return 1.0
    each = [
        [1.0 + DELAY * (rank_of[stage] == slow) for stage in range(len(rank_of))]
        for slow in (None, 0, len(plan) // 2, len(plan) - 1)
    ]
    done = ends_of_several(plan, [(times, times, times) for times in each])
    even, *slower = (max(steps[-1] for steps in ranks) for ranks in done)
    gains = [(span / even - 1.0) / DELAY for span in slower]
    return math.fsum(gains) / len(gains)


def _stages(job: Job, graph: Graph, machine: Machine) -> list[tuple[float, float]]:
    """Return seconds of (tensor work, other kernels) of each pipeline rank before its update."""
    compute = np.array([isinstance(work, Compute) for work in graph.works], np.bool_)
    tensor = tensor_works(graph.works) & (machine.arithmetic > machine.memory)
    kernel = machine.arithmetic.clip(machine.memory) + machine.fixed
    parts = [np.where(tensor, machine.arithmetic, 0.0)]
    parts.append(np.where(compute, kernel, 0.0) - parts[0])
    ranks, row = graph.ranks(), graph.rank_rows()
    before = graph.phase != PHASES.index("O")
    columns = [np.bincount(row, part[graph.work] * before).astype(float) for part in parts]
    return [_longest(columns, np.isin(ranks, of)) for of in job.ranks.reshape(-1, job.mesh.pp).T]


def _longest(columns: list[Floats], of: Bools) -> tuple[float, float]:
    """Return both seconds of that rank of a stage which takes longest."""
    tensor, other = (column[of] for column in columns)
    at = int((tensor + other).argmax())
    return float(tensor[at]), float(other[at])
