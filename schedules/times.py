"""The times of a plan's steps, in seconds: one number for every stage, or one for each."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from statistics import fmean
from typing import NamedTuple

from schedules.input_error import InputError

Seconds = float | Sequence[float]
"""One number for all stages, or one for each, first to last."""

Given = tuple[Seconds, Seconds, Seconds, Seconds]
"""The times of F, I and W of the stages, and p2p, that of a message each way between a stage and
the next: one number for all, or one for each boundary; in seconds."""


class Times(NamedTuple):
    """Durations per stage, and of a hop per boundary, as whole numbers of one unit: ties stay ties.

    ``hops[s]`` is that of a message between stages s and s + 1, either way.
    """

    forward: list[int]
    inputs: list[int]
    weights: list[int]
    hops: list[int]


def of_each(kind: str, seconds: Seconds, stages: int) -> list[float]:
    """Return a list with one number per stage.

    >>> of_each("F", 5.0, 2), of_each("F", [5.0, 6.0], 2)
    ([5.0, 5.0], [5.0, 6.0])

    Raises InputError when the numbers are not as many as the stages.
    """
    if not isinstance(seconds, Sequence):
        return [seconds] * stages
    if len(seconds) != stages:
        raise InputError(
            f"{kind} has {len(seconds)} times for {stages} stages; give one for all, "
            f"or one for each stage"
        )
    return list(seconds)


def of_hops(seconds: Seconds, stages: int) -> list[float]:
    """Return a list with the seconds of a message at each boundary between stages.

    >>> of_hops(0.5, 3), of_hops([0.5, 2.0], 3)
    ([0.5, 0.5], [0.5, 2.0])

    Raises InputError when the numbers are not as many as the boundaries.
    """
    if not isinstance(seconds, Sequence):
        return [seconds] * max(stages - 1, 0)
    if len(seconds) != stages - 1:
        raise InputError(
            f"p2p has {len(seconds)} times for {stages} stages; give one for all, or one for each "
            "boundary between two"
        )
    return list(seconds)


def of_stage(seconds: Seconds, stage: int) -> float:
    """Return the number of one stage.

    >>> of_stage(5.0, 1), of_stage([5.0, 6.0], 1)
    (5.0, 6.0)
    """
    return seconds[stage] if isinstance(seconds, Sequence) else seconds


def whole(*times: float) -> list[int]:
    """Return the times as whole numbers of one unit, exactly as written: 0.1 + 0.2 must equal 0.3.

    Searches compare sums of times, and a tie in seconds must be a tie in milliseconds too.

    >>> whole(1.0, 1.1, 0.25)
    [20, 22, 5]

    Raises InputError for a time that is negative or not finite.
    """
    for time in times:
        if not 0 <= time < float("inf"):
            raise InputError(f"a time of {time} s cannot be scheduled; give one from 0 up")
    parts = [Fraction(repr(float(time))) for time in times]
    unit = lcm(*(part.denominator for part in parts))
    return [int(part * unit) for part in parts]


def is_even(given: Given) -> bool:
    """Return whether all stages take the same time, and all messages.

    >>> is_even((1.0, [2.0, 2.0], 3.0, 0.5)), is_even((1.0, [2.0, 4.0], 3.0, 0.5))
    (True, False)
    """
    return all(len(set(time)) <= 1 for time in given if isinstance(time, Sequence))


def mean(given: Given) -> Given:
    """Return the same times with their mean, one number, for all stages and messages.

    >>> mean((1.0, [2.0, 4.0], 3.0, 0.5))
    (1.0, 3.0, 3.0, 0.5)
    """
    f, i, w, hop = (fmean(time or [0.0]) if isinstance(time, Sequence) else time for time in given)
    return f, i, w, hop


def with_waits(given: Given, stages: int) -> Given:
    """Return times in which ranks wait for what they send, as in batched exchanges.

    >>> with_waits((5.0, 4.0, 3.0, [0.5, 2.0]), 3)
    ([5.5, 7.0, 5.0], [4.0, 4.5, 6.0], 3.0, 0.0)
    """
    f, i = (of_each(kind, time, stages) for kind, time in zip("FI", given, strict=False))
    hops = of_hops(given[3], stages)
    down, up = zip(f, [*hops, 0.0], strict=True), zip(i, [0.0, *hops], strict=True)
    return [a + b for a, b in down], [a + b for a, b in up], given[2], 0.0


def exact(given: Given, stages: int) -> Times:
    """Return the times as whole numbers, for that many stages.

    >>> exact((1.0, [1.1, 1.2], 0.25, 0.0), 2)
    Times(forward=[20, 20], inputs=[22, 24], weights=[5, 5], hops=[0])

    Raises InputError when the times are not as many as the stages, and for a time that is negative
    or not finite.
    """
    kinds = [of_each(kind, time, stages) for kind, time in zip("FIW", given[:3], strict=True)]
    numbers = whole(*(time for each in kinds for time in each), *of_hops(given[3], stages))
    forward, inputs, weights, hops = (numbers[n * stages : (n + 1) * stages] for n in range(4))
    return Times(forward, inputs, weights, hops)
