"""How the ranks of a recipe's pipeline send each other messages."""

from __future__ import annotations

import schedules
from sim.recipe.recipe import ParallelismSection, ScheduleSection


def p2p(parallelism: ParallelismSection, schedule: ScheduleSection) -> str:
    """Return the policy: the recipe's or, with auto, that of the schedule's own runtime.

    Messages that a recipe with auto overlaps are not batched, as in Megatron-LM.

    >>> p2p(ParallelismSection(), ScheduleSection())
    'batched'
    >>> p2p(ParallelismSection(overlap_p2p=True), ScheduleSection())
    'pair'
    """
    if parallelism.p2p != "auto":
        return parallelism.p2p
    own = schedules.p2p(schedule.name)
    return "pair" if own == "batched" and parallelism.overlap_p2p else own
