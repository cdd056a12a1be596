"""Finds where each step of a plan stands: its rank, and its position, from 0, among that rank's."""

from __future__ import annotations

from typing import NamedTuple

from schedules import Pair, Plan, members
from schedules.input_error import InputError


class Place(NamedTuple):
    """Where a step is in a plan."""

    rank: int
    position: int

    def __str__(self) -> str:
        return f"rank {self.rank}, position {self.position}"


Chains = dict[tuple[int, int], dict[str, Place]]
"""The kinds of step that run for each (stage, microbatch), and where each kind runs."""


def chains_of(plan: Plan) -> Chains:
    """Return all steps by stage and microbatch.

    Raises InputError for what is no step, is run twice, or overlaps with what it needs.
    """
    chains: Chains = {}
    for rank, items in enumerate(plan):
        if not items:
            raise InputError(f"rank {rank} runs no step; each needs a stage of its own")
        for position, item in enumerate(items):
            here = Place(rank, position)
            if isinstance(item, Pair):
                _overlap(item, here)
            for step in members(item):
                if step.kind not in ("F", "B", "I", "W") or step.stage < 0 or step.microbatch < 0:
                    raise InputError(f"{here}: {step} is no step; one is 2F0, 2B0, 2I0 or 2W0")
                places = chains.setdefault((step.stage, step.microbatch), {})
                if step.kind in places:
                    raise InputError(f"{here}: {step} is already run at {places[step.kind]}")
                places[step.kind] = here
    if not chains:
        raise InputError("the plan has no ranks")
    return chains


def _overlap(pair: Pair, here: Place) -> None:
    forward, backward = pair
    if (forward.kind, backward.kind) != ("F", "B"):
        raise InputError(f"{here}: {pair} is no forward and whole backward")
    if forward._replace(kind="B") == backward:
        raise InputError(f"{here}: {pair} overlaps a backward with the forward that it needs")
