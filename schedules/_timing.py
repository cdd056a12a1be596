"""How long a plan takes when every rank runs its steps in order, each as soon as it can.

Searches compare their candidates by it. A message takes p2p seconds and keeps nobody busy.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm

from schedules import Plan, flat, stage_rank

_Output = tuple[int, bool, int]  # stage, whether of a forward, microbatch


def whole(*times: float) -> list[int]:
    """The times as whole numbers of one unit, as they are written: 0.1 + 0.2 must equal 0.3.

    Searches compare sums of times, and a tie must be one in seconds as in milliseconds.

    >>> whole(1.0, 1.1, 0.25)
    [20, 22, 5]

    Raises ValueError for a time that is negative or not finite.
    """
    for time in times:
        if not 0 <= time < float("inf"):
            raise ValueError(f"a time of {time} s cannot be scheduled; give one from 0 up")
    parts = [Fraction(repr(float(time))) for time in times]
    unit = lcm(*(part.denominator for part in parts))
    return [int(part * unit) for part in parts]


def ends(
    plan: Plan,
    F: float,
    I: float,
    W: float,
    p2p: float = 0,
) -> list[list[float]]:
    """When each step of each rank ends: the longest path to it.

    >>> from schedules import Step
    >>> ends([[Step(0, "F", 0), Step(0, "B", 0)], [Step(1, "F", 0), Step(1, "B", 0)]], 5, 4, 3)
    [[5, 24], [10, 17]]

    Raises ValueError when steps wait for each other in a circle.
    """
    rank_of, seconds = stage_rank(plan), {"F": F, "I": I, "W": W, "B": I + W}
    steps, done = flat(plan), dict[_Output, float]()
    out: list[list[float]] = [[] for _ in plan]
    blocked: dict[_Output, int] = {}  # the rank that waits for an output
    ready = list(range(len(plan)))
    while ready:
        rank = ready.pop()
        own, times = steps[rank], out[rank]
        while len(times) < len(own):
            stage, kind, microbatch = own[len(times)]
            start, forward = times[-1] if times else 0, kind == "F"
            source = stage - 1 if forward else stage + 1
            if kind != "W" and source in rank_of:
                need = (source, forward, microbatch)
                if need not in done:
                    blocked[need] = rank
                    break
                start = max(start, done[need] + (0 if rank_of[source] == rank else p2p))
            times.append(start + seconds[kind])
            if kind != "W":
                made = (stage, forward, microbatch)
                done[made] = times[-1]
                if made in blocked:
                    ready.append(blocked.pop(made))
    if [len(times) for times in out] != [len(own) for own in steps]:
        raise ValueError("steps of the plan wait for each other in a circle")
    return out


def longest_span(
    plan: Plan,
    F: float,
    I: float,
    W: float,
    p2p: float = 0,
) -> float:
    """The longest time that a rank takes from the start of its first step to the end of its last.

    >>> from schedules import Step
    >>> longest_span([[Step(0, kind, 0) for kind in "FIW"]], 5, 4, 3)
    12
    """
    return max(times[-1] - times[0] + F for times in ends(plan, F, I, W, p2p))
