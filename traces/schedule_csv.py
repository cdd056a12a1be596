"""Reads and writes pipeline orders as torch does: one line of actions per rank.

The formats are those of ``torch.distributed.pipelining``'s ``_load_csv`` and ``_dump_csv``:
``compute_only`` has the steps, and ``compute_comms`` what torch makes of them, with messages and
FSDP's actions.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence

import schedules
from schedules import Pair, Plan, Step, members
from schedules.csv import Move, parse, plan_of

GATHERED = 3  # a rank gathers parameters of so many stages at a time, unless more run at once

Action = Step | Pair | Move | str  # str: what FSDP does for a stage, such as 0UNSHARD


def text(plan: Plan, communication: bool = False) -> str:
    r"""Return the plan as CSV with torch's line ends, and torch's messages if asked for.

    >>> from schedules import load
    >>> text(load("gpipe")(2, 1))
    '0F0,0B0\r\n1F0,1B0\r\n'

    Raises InputError where torch has no messages for a plan.
    """
    out = io.StringIO()
    csv.writer(out).writerows(lowered(plan) if communication else plan)
    return out.getvalue()


def read(text: str) -> Plan:
    r"""Return the steps in CSV of either format, unchecked (:func:`schedules.from_csv.from_csv`).

    >>> read("0F0,0SEND_F0,,0B0\r\n1RECV_F0,1F0,1B0\r\n") == read("0F0,0B0\r\n1F0,1B0")
    True

    Raises InputError for a cell that is no action.
    """
    return plan_of(parse(text))


def lowered(plan: Plan) -> list[list[Action]]:
    """Return what torch's runtime does to run a plan: its steps, messages, and actions for FSDP.

    torch takes an action of each rank in turn; the sender of a message puts down both its ends
    (torch 2.13, ``_prepare_schedule_with_comms``).
    """
    owner = schedules.stage_rank(plan)
    schedules.require_legal(plan, pair="fused")
    count = 1 + max(step.microbatch for steps in schedules.flat(plan) for step in steps)
    todo = [_reduced(_sharded(items), count) for items in plan]
    out: list[list[Action]] = [[] for _ in plan]
    known: list[set[Action]] = [set() for _ in plan]  # what a rank has run or will have received
    at = [0] * len(plan)
    while any(at[rank] < len(actions) for rank, actions in enumerate(todo)):
        for rank, actions in enumerate(todo):
            if at[rank] == len(actions):
                continue
            action = actions[at[rank]]
            steps = members(action) if isinstance(action, Step | Pair) else ()
            if not all(_ready(step, known[rank], len(owner)) for step in steps):
                continue
            at[rank] += 1
            out[rank].append(action)
            for step in steps:
                known[rank].add(step)
                if (sent := _sent(step, owner)) and owner[sent.other.stage] != rank:
                    out[rank].append(sent)
                    out[owner[sent.other.stage]].append(sent.other)
                    known[owner[sent.other.stage]].add(sent.other)
    return out


def _sent(step: Step, owner: dict[int, int]) -> Move | None:
    """Return the message that a step makes, if a stage awaits it."""
    if step.kind == "W":
        return None
    move = Move(step.stage, "SEND", "F" if step.kind == "F" else "B", step.microbatch)
    return move if move.other.stage in owner else None


def _ready(step: Step, known: set[Action], stages: int) -> bool:
    if step.kind == "W" or step.stage == (0 if step.kind == "F" else stages - 1):
        return True
    received = Move(step.stage, "RECV", "F" if step.kind == "F" else "B", step.microbatch)
    made_by = step.stage + (-1 if step.kind == "F" else 1)
    local = (Step(made_by, k, step.microbatch) for k in ("F" if step.kind == "F" else "BI"))
    return received in known or any(other in known for other in local)


def _sharded(items: Sequence[Step | Pair]) -> list[Action]:
    """Add FSDP's gathers of the stages that run next, and frees of those that do not."""
    out: list[Action] = []
    gathered: set[int] = set()
    for item, soon in zip(items, _following(items), strict=True):
        for stage in [stage for stage in gathered if stage not in soon]:
            gathered.remove(stage)
            out.append(f"{stage}RESHARD")
        for stage in [stage for stage in soon if stage not in gathered]:
            gathered.add(stage)
            out.append(f"{stage}UNSHARD")
        out.append(item)
    return [*out, *(f"{stage}RESHARD" for stage in gathered)]


def _following(items: Sequence[Step | Pair]) -> list[list[int]]:
    """Return, per item, the next few distinct stages in order of use; pairs are not split."""
    out: list[list[int]] = []
    order: list[tuple[int, int]] = []  # all stages and the item that runs each next
    for at in reversed(range(len(items))):
        now = dict.fromkeys(step.stage for step in members(items[at]))
        order = [*((stage, at) for stage in now), *(row for row in order if row[0] not in now)]
        reach = max(at for _, at in order[:GATHERED])
        out.append([s for k, (s, at) in enumerate(order) if k < GATHERED or at == reach])
    return out[::-1]


def _reduced(actions: Sequence[Action], microbatches: int) -> list[Action]:
    """Add the reduction of each stage's gradients, after its last backward."""
    out: list[Action] = []
    done: Counter[int] = Counter()
    for action in actions:
        out.append(action)
        for step in members(action) if isinstance(action, Step | Pair) else ():
            done[step.stage] += step.kind in "BW"
            if step.kind in "BW" and done[step.stage] == microbatches:
                out.append(f"{step.stage}REDUCE_GRAD")
    return out
