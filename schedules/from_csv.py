"""Any order: read from torch's CSV, a line per rank, such as ``0F0,0F1,0B0,0B1``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from schedules import Plan, flat
from schedules.csv import Move, Rows, parse, plan_of
from schedules.input_error import InputError
from schedules.legality import check_plan
from schedules.legality.messages import check_messages
from schedules.text_file import read_text

P2P = "pair"
"""As torch's runtime, which runs such files: ``isend`` and ``irecv`` of a message, awaited by the
step that needs it (torch.distributed.pipelining, schedules.py)."""

MOST_BYTES = 64 * 2**20
"""The longest order that is read, in bytes: about as many steps as a schedule may have."""


class Shape(NamedTuple):
    """The size of an order: what a schedule is made for."""

    ranks: int
    stages: int
    microbatches: int


def from_csv(path: str | Path, policy: str = "direction") -> Plan:
    """Read the order in a file in torch's format ``compute_only`` or ``compute_comms``.

    Messages in the file are checked and then left out, since the streams of ``policy`` carry them.
    Empty cells are left out too, and FSDP's UNSHARD, RESHARD and REDUCE_GRAD.

    Raises InputError for what is no order, or an order that cannot run.
    """
    text = _text(path)
    with _named(path):
        rows = _rows(text)
        plan = plan_of(rows)
        check_plan(plan, policy)
        if any(isinstance(action, Move) for row in rows for action in row):
            check_messages(rows, policy)
    return plan


def file_shape(path: str | Path) -> Shape:
    """Return the shape of the order in a file, of which only the cells are checked.

    Raises InputError for a file without steps to count.
    """
    text = _text(path)
    with _named(path):
        return shape(plan_of(_rows(text)))


def shape(plan: Plan) -> Shape:
    """Count the ranks, stages and microbatches of a plan.

    >>> from schedules import load
    >>> shape(load("interleaved_1f1b")(2, 4))
    Shape(ranks=2, stages=4, microbatches=4)

    Raises InputError when there are none.
    """
    steps = [step for row in flat(plan) for step in row]
    if not steps:
        raise InputError("the plan has no ranks")
    stages, microbatches = ({step[k] for step in steps} for k in (0, 2))
    return Shape(len(plan), len(stages), len(microbatches))


def _rows(text: str) -> Rows:
    rows = parse(text)
    if not any(plan_of(rows)):
        raise InputError("the file has no steps")
    return rows


def _text(path: str | Path) -> str:
    return read_text(Path(path), "the order ", MOST_BYTES)


@contextmanager
def _named(path: str | Path) -> Iterator[None]:
    """Begin refusals with the file that they are about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
