"""The orders made by hand, which depend on no times, as halves of backwards: F, I and W.

Searches take one of them where it is shorter than what they find.
"""

from __future__ import annotations

from schedules import Plan, Step, members
from schedules.one_f_one_b import one_f_one_b
from schedules.one_f_one_b_v import one_f_one_b_v
from schedules.patterns.torch_zb_v import torch_zb_v
from schedules.patterns.zb_h import hand


def one_stage(ranks: int, microbatches: int) -> list[Plan]:
    """Return ZB-H1, ZB-H2 and 1F1B with split backwards: one stage per rank."""
    split = halved(one_f_one_b(ranks, microbatches))
    return [hand(ranks, microbatches, 1), hand(ranks, microbatches, 2), split]


def in_a_v(ranks: int, microbatches: int) -> list[Plan]:
    """Return torch's ZB-V and 1F1B-V with split backwards: two stages per rank in a V."""
    return [torch_zb_v(ranks, microbatches), halved(one_f_one_b_v(ranks, microbatches))]


def halved(plan: Plan) -> Plan:
    """Return a plan with each whole backward as I and then W.

    >>> halved([[Step(0, "F", 0), Step(0, "B", 0)]]) == [[Step(0, kind, 0) for kind in "FIW"]]
    True
    """
    return [[half for item in items for step in members(item) for half in _halves(step)]
            for items in plan]  # fmt: skip


def _halves(step: Step) -> tuple[Step, ...]:
    if step.kind != "B":
        return (step,)
    return step._replace(kind="I"), step._replace(kind="W")
