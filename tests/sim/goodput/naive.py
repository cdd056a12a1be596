"""A run step by step, with given times of failures: shares no code with what it tests."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from sim.goodput.pace import Pace


def times(seed: str, mtbf: float) -> Iterator[float]:
    """The times of failures that a seed gives."""
    draw, now = Random(f"{seed} failures"), 0.0
    while True:
        now += draw.expovariate(1.0 / mtbf)
        draw.random()  # the kind of failure
        yield now


def seconds(pace: Pace, failures: Iterator[float], recovery: float) -> float:
    """The time of the run; each failure takes ``recovery``, which the next one may interrupt."""
    costs, now, next_ = pace.costs, 0.0, next(failures)
    safe = 0  # steps that no failure loses
    while True:
        done, since, writing = safe, 0, None  # writing: (when it is safe, its steps)
        while True:
            ends = done + 1 == pace.steps or since + 1 == pace.interval
            end = now + pace.step
            if ends:
                wait = max(0.0, writing[0] - end) if writing else 0.0
                end_of_stall = end + wait + costs.stall
                if done + 1 == pace.steps:
                    end_of_stall += costs.settle
            last = end_of_stall if ends else end
            if writing and writing[0] <= min(last, next_):
                safe, writing = writing[1], None
            if next_ < last:
                break
            now, done, since = last, done + 1, since + 1
            if done == pace.steps:
                return now
            if ends:
                since = 0
                if costs.settle:
                    writing = (now + costs.settle, done)
                else:
                    safe = done
        now = next_
        next_ = next(failures)
        while next_ < now + recovery:
            now, next_ = next_, next(failures)
        now += recovery
