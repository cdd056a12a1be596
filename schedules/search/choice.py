"""Which of several orders is best for given times, in a given memory, as its messages are sent.

Searches try few kinds of orders, so those made by hand are always among the candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Literal

from schedules import Plan, flat
from schedules.input_error import InputError
from schedules.legality import check_plan
from schedules.search.plan_draft import HALF_AT_INPUTS
from schedules.search.timing import longest_span, makespan
from schedules.times import Given

Objective = Literal["span", "makespan"]
"""What a search makes short: the longest span from a rank's first step to its last, as the
zero-bubble authors do and as sets the pace of steps that overlap; or the time until all ends."""


def length(
    plan: Plan, times: Given, objective: Objective = "span", policy: str = "direction"
) -> float:
    """Return the longest span or the makespan of a plan, in seconds.

    Raises InputError for another objective.
    """
    if objective not in ("span", "makespan"):
        raise InputError(f'objective = {objective!r} must be "span" or "makespan"')
    of = longest_span if objective == "span" else makespan
    return of(plan, *times, "direction" if policy == "batched" else policy)


def held(plan: Plan, memory: dict[str, int] = HALF_AT_INPUTS) -> float:
    """Return the most stage activations that a rank holds; ``memory`` says when they are freed.

    >>> from schedules import Step
    >>> held([[Step(0, kind, m) for kind in "FIW" for m in (0, 1)]])
    2.0
    """
    changes = ([memory[step.kind] for step in steps] for steps in flat(plan))
    return max(max(accumulate(change)) for change in changes) / 2


def fitting(
    plans: Iterable[Plan], limit: float, memory: dict[str, int] = HALF_AT_INPUTS
) -> list[Plan]:
    """Return the plans in which no rank holds more than ``limit`` stage activations."""
    return [plan for plan in plans if held(plan, memory) <= limit]


def ranked(plans: Sequence[Plan], times: Given, objective: Objective, policy: str) -> list[Plan]:
    """Return the distinct plans that run under a policy, the shortest first, ties as given.

    If none of them runs, all are returned.
    """
    distinct = [plan for n, plan in enumerate(plans) if plan not in plans[:n]]
    if policy == "batched":  # the only one under which an order may stop
        distinct = [plan for plan in distinct if _runs(plan, policy)] or distinct
    return sorted(distinct, key=lambda plan: length(plan, times, objective, policy))


def _runs(plan: Plan, policy: str) -> bool:
    try:
        check_plan(plan, policy)
    except InputError:
        return False
    return True
