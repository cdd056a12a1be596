"""Times a plan in which every rank runs its steps in order, each as soon as it can.

Searches compare their candidates by this. A message takes p2p seconds on its stream, behind those
before it there, and keeps no rank busy. Under the policy ``direction`` each direction of a pair of
ranks has a stream, under ``pair`` both have one together, on which messages go in the order of
torch's lowering: one item of each rank in turn, as far as their inputs have been sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from schedules import Plan, Step, members, stage_rank
from schedules.input_error import InputError
from schedules.times import Seconds, of_each, of_hops, of_stage

_Output = tuple[int, bool, int]  # stage, whether a forward made it, microbatch


class _Timed(NamedTuple):
    """A step of a rank, the (rank, step) that it needs, and the rank and boundary it sends to."""

    rank: int
    stage: int
    kind: str
    need: tuple[int, int] | None
    to: int | None
    boundary: int


def ends(
    plan: Plan,
    F: Seconds,
    I: Seconds,
    W: Seconds,
    p2p: Seconds = 0,
    policy: str = "direction",
) -> list[list[float]]:
    """Return when each step of each rank ends, in seconds: the longest path to it.

    ``F``, ``I`` and ``W`` are one number for all stages, or one for each; ``p2p`` is one for all
    boundaries between stages, or one for each.

    >>> from schedules import Step
    >>> ends([[Step(0, "F", 0), Step(0, "B", 0)], [Step(1, "F", 0), Step(1, "B", 0)]], 5, 4, 3)
    [[5, 24], [10, 17]]

    Raises InputError when steps wait for each other in a circle, and when the times are not as many
    as the stages or their boundaries.
    """
    return ends_of_several(plan, [(F, I, W)], p2p, policy)[0]


def ends_of_several(
    plan: Plan,
    times: Sequence[tuple[Seconds, Seconds, Seconds]],
    p2p: Seconds = 0,
    policy: str = "direction",
) -> list[list[list[float]]]:
    """Return what :func:`ends` does for each of several times (F, I, W) of one plan."""
    rank_of = stage_rank(plan)
    stages = max(rank_of, default=-1) + 1
    seconds = [_seconds(stages, *each) for each in times]
    order, hops = _order(plan, rank_of), of_hops(p2p, stages)
    return [_ends(order, len(plan), each, hops, policy == "pair") for each in seconds]


def _order(plan: Plan, rank_of: Mapping[int, int]) -> list[_Timed]:
    """Return the steps of all ranks, each behind what it needs, in the order of torch's lowering.

    It takes one item of each rank in turn, if what the item needs has been taken.
    """
    made, out = dict[_Output, tuple[int, int]](), list[_Timed]()
    at, done, progress = [0] * len(plan), [0] * len(plan), True
    left = [rank for rank, items in enumerate(plan) if items]
    while progress:
        progress = False
        for rank in left:
            item = plan[rank][at[rank]]
            steps = (item,) if isinstance(item, Step) else members(item)
            needs = [_need(step, rank_of) for step in steps]
            if any(need is not None and need not in made for need in needs):
                continue
            for step, need in zip(steps, needs, strict=True):
                stage, kind, m = step
                to, boundary = _target(step, rank_of)
                source = None if need is None else made[need]
                out.append(_Timed(rank, stage, kind, source, to, boundary))
                if kind != "W":
                    made[stage, kind == "F", m] = rank, done[rank]
                done[rank] += 1
            at[rank] += 1
            progress = True
        left = [rank for rank in left if at[rank] < len(plan[rank])]
    if left:
        raise InputError("steps of the plan wait for each other in a circle")
    return out


def _need(step: Step, rank_of: Mapping[int, int]) -> _Output | None:
    """Return the output of another stage that a step needs, if it needs one."""
    forward = step.kind == "F"
    before = step.stage - 1 if forward else step.stage + 1
    return None if step.kind == "W" or before not in rank_of else (before, forward, step.microbatch)


def _target(step: Step, rank_of: Mapping[int, int]) -> tuple[int | None, int]:
    """Return the rank that a step's output goes to, if it is another, and the boundary it passes.

    Boundary s lies between stages s and s + 1.
    """
    boundary = step.stage if step.kind == "F" else step.stage - 1
    after = boundary + (step.kind == "F")
    sends = step.kind != "W" and rank_of.get(after, rank_of[step.stage]) != rank_of[step.stage]
    return (rank_of[after], boundary) if sends else (None, boundary)


def _ends(
    order: list[_Timed],
    ranks: int,
    seconds: Mapping[str, list[float]],
    hops: Sequence[float],
    paired: bool,
) -> list[list[float]]:
    """Return when each step of each rank ends, from an order in which needs come first."""
    out: list[list[float]] = [[] for _ in range(ranks)]
    there: list[list[float]] = [[] for _ in range(ranks)]  # when the step's output has arrived
    free = dict[tuple[int, int], float]()  # when each stream has carried what it has so far
    for rank, stage, kind, need, to, boundary in order:
        times = out[rank]
        end = times[-1] if times else 0
        if need is not None:
            end = max(end, there[need[0]][need[1]])
        end += seconds[kind][stage]
        times.append(end)
        if to is not None:
            stream = (to, rank) if paired and to < rank else (rank, to)
            free[stream] = end = max(end, free.get(stream, 0)) + hops[boundary]
        there[rank].append(end)
    return out


def longest_span(
    plan: Plan,
    F: Seconds,
    I: Seconds,
    W: Seconds,
    p2p: Seconds = 0,
    policy: str = "direction",
) -> float:
    """Return the longest time that a rank takes from its first step's start to its last's end.

    >>> from schedules import Step
    >>> longest_span([[Step(0, kind, 0) for kind in "FIW"]], 5, 4, 3)
    12
    """
    done = ends(plan, F, I, W, p2p, policy)
    begun = [of_stage(F, members(items[0])[0].stage) for items in plan]
    return max(times[-1] - times[0] + first for times, first in zip(done, begun, strict=True))


def makespan(
    plan: Plan,
    F: Seconds,
    I: Seconds,
    W: Seconds,
    p2p: Seconds = 0,
    policy: str = "direction",
) -> float:
    """Return when the last step of all ranks ends, in seconds.

    >>> from schedules import Step
    >>> makespan([[Step(0, kind, 0) for kind in "FIW"]], 5, 4, 3)
    12
    """
    return max(map(max, ends(plan, F, I, W, p2p, policy)))


def _seconds(stages: int, F: Seconds, I: Seconds, W: Seconds) -> dict[str, list[float]]:
    """Return the times of each kind of step, for every stage; a whole backward is I and W."""
    f, i, w = (of_each(kind, time, stages) for kind, time in (("F", F), ("I", I), ("W", W)))
    return {"F": f, "I": i, "W": w, "B": [a + b for a, b in zip(i, w, strict=True)]}
