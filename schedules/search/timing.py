"""Times a plan in which every rank runs its steps in order, each as soon as it can.

Searches compare their candidates by this. A message takes p2p seconds and keeps no rank busy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from schedules import Plan, flat, members, stage_rank
from schedules.input_error import InputError
from schedules.times import Given, Seconds, is_even, mean, of_each, of_stage

_Output = tuple[int, bool, int]  # stage, whether a forward made it, microbatch
_Timed = tuple[int, int, str, tuple[int, int] | None]  # rank, stage, kind, (rank, step) it needs


def ends(
    plan: Plan,
    F: Seconds,
    I: Seconds,
    W: Seconds,
    p2p: float = 0,
) -> list[list[float]]:
    """Return when each step of each rank ends, in seconds: the longest path to it.

    ``F``, ``I`` and ``W`` are one number for all stages, or one for each.

    >>> from schedules import Step
    >>> ends([[Step(0, "F", 0), Step(0, "B", 0)], [Step(1, "F", 0), Step(1, "B", 0)]], 5, 4, 3)
    [[5, 24], [10, 17]]

    Raises InputError when steps wait for each other in a circle, and when the times are not as many
    as the stages.
    """
    return ends_of_several(plan, [(F, I, W)], p2p)[0]


def ends_of_several(
    plan: Plan, times: Sequence[tuple[Seconds, Seconds, Seconds]], p2p: float = 0
) -> list[list[list[float]]]:
    """Return what :func:`ends` does for each of several times (F, I, W) of one plan."""
    rank_of = stage_rank(plan)
    stages = max(rank_of, default=-1) + 1
    seconds = [_seconds(stages, *each) for each in times]
    order = _order(plan, rank_of)
    return [_ends(order, len(plan), each, p2p) for each in seconds]


def _order(plan: Plan, rank_of: Mapping[int, int]) -> list[_Timed]:
    """Return the steps of all ranks, each behind what it needs."""
    steps, made, out = flat(plan), dict[_Output, tuple[int, int]](), list[_Timed]()
    at, ready = [0] * len(plan), list(range(len(plan)))
    blocked: dict[_Output, int] = {}  # which rank waits for each output
    while ready:
        rank = ready.pop()
        own = steps[rank]
        while at[rank] < len(own):
            stage, kind, microbatch = own[at[rank]]
            forward, need = kind == "F", None
            source = (stage - 1 if forward else stage + 1, forward, microbatch)
            if kind != "W" and source[0] in rank_of:
                need = made.get(source)
                if need is None:
                    blocked[source] = rank
                    break
            out.append((rank, stage, kind, need))
            if kind != "W":
                output = stage, forward, microbatch
                made[output] = rank, at[rank]
                if output in blocked:
                    ready.append(blocked.pop(output))
            at[rank] += 1
    if at != [len(own) for own in steps]:
        raise InputError("steps of the plan wait for each other in a circle")
    return out


def _ends(
    order: list[_Timed], ranks: int, seconds: Mapping[str, list[float]], p2p: float
) -> list[list[float]]:
    """Return when each step of each rank ends, from an order in which needs come first."""
    out: list[list[float]] = [[] for _ in range(ranks)]
    for rank, stage, kind, need in order:
        times = out[rank]
        start = times[-1] if times else 0
        if need is not None:
            source, step = need
            start = max(start, out[source][step] + (0 if source == rank else p2p))
        times.append(start + seconds[kind][stage])
    return out


def longest_span(
    plan: Plan,
    F: Seconds,
    I: Seconds,
    W: Seconds,
    p2p: float = 0,
) -> float:
    """Return the longest time that a rank takes from its first step's start to its last's end.

    >>> from schedules import Step
    >>> longest_span([[Step(0, kind, 0) for kind in "FIW"]], 5, 4, 3)
    12
    """
    done = ends(plan, F, I, W, p2p)
    begun = [of_stage(F, members(items[0])[0].stage) for items in plan]
    return max(times[-1] - times[0] + first for times, first in zip(done, begun, strict=True))


def shortest(search: Callable[[Given], Plan], given: Given) -> Plan:
    """Return what a search finds for these times, or for their means if that takes less time.

    So an order that knows how stages differ never takes longer than one that does not.
    """
    found = search(given)
    if is_even(given):
        return found
    return min(found, search(mean(given)), key=lambda plan: longest_span(plan, *given))


def _seconds(stages: int, F: Seconds, I: Seconds, W: Seconds) -> dict[str, list[float]]:
    """Return the times of each kind of step, for every stage; a whole backward is I and W."""
    f, i, w = (of_each(kind, time, stages) for kind, time in (("F", F), ("I", I), ("W", W)))
    return {"F": f, "I": i, "W": w, "B": [a + b for a, b in zip(i, w, strict=True)]}
