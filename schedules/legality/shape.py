"""Checks that a schedule from outside returns a plan of the shape that was asked for."""

from __future__ import annotations

from schedules import Pair, Plan, Step, flat, members
from schedules.input_error import InputError


def require_plan(found: object, name: str, ranks: int, stages: int, microbatches: int) -> Plan:
    """Return the plan; raise InputError, which names the schedule, for anything else.

    Whether the plan can run is another question: see :func:`schedules.require_legal`.
    """
    if not isinstance(found, list) or not all(isinstance(steps, list) for steps in found):
        raise InputError(
            f"{name} returns {_of(found)}; a plan is a list with a list of steps for each rank"
        )
    if len(found) != ranks:
        raise InputError(f"{name} returns {len(found)} lists of steps; there are {ranks} ranks")
    for rank, steps in enumerate(found):
        for position, item in enumerate(steps):
            if not (isinstance(item, Step | Pair) and all(map(_is_step, members(item)))):
                raise InputError(
                    f"{name} returns {str(item)[:80]!r} at rank {rank}, position {position}; a "
                    'step is Step(stage, kind, microbatch), such as Step(0, "F", 0), of kind '
                    "F, B, I or W"
                )
    plan: Plan = found
    steps = [step for row in flat(plan) for step in row]
    for what, k, wanted in (("stages", 0, stages), ("microbatches", 2, microbatches)):
        there = len({step[k] for step in steps})
        if there != wanted:
            raise InputError(f"{name} returns {there} {what}; there are {wanted} to run")
    return plan


def _of(found: object) -> str:
    kind = type(found).__name__
    return "None" if found is None else f"a{'n' * (kind[0] in 'aeiou')} {kind}"


def _is_step(step: object) -> bool:
    return (
        isinstance(step, Step)
        and all(type(number) is int and number >= 0 for number in (step.stage, step.microbatch))
        and step.kind in ("F", "B", "I", "W")
    )
