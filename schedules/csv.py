"""Orders in torch's CSV: a line per rank, a cell per action, such as ``2F0`` or ``1SEND_F0``.

These are the formats ``compute_only`` and ``compute_comms`` of ``torch.distributed.pipelining``.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import NamedTuple

from schedules import Pair, Plan, Step
from schedules.input_error import InputError

_STEP = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})", re.ASCII)
_MOVE = re.compile(r"(\d{1,9})(SEND|RECV)_([FB])(\d{1,9})", re.ASCII)
_SHARDS = re.compile(
    r"\d{1,9}(UNSHARD|RESHARD|REDUCE_GRAD)", re.ASCII
)  # FSDP's, no part of an order
_PAIR = re.compile(r"\((.*);(.*)\)OVERLAP_F_B")


class Move(NamedTuple):
    """One end of a message, at the stage that sends or receives it.

    >>> str(Move(1, "RECV", "F", 0)), Move(1, "RECV", "F", 0).other
    ('1RECV_F0', Move(stage=0, end='SEND', kind='F', microbatch=0))
    """

    stage: int
    end: str  # SEND or RECV
    kind: str  # F, an activation, or B, a gradient
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.end}_{self.kind}{self.microbatch}"

    @property
    def other(self) -> Move:
        """The other end of the message."""
        onward = 1 if (self.end == "SEND") == (self.kind == "F") else -1
        end = "RECV" if self.end == "SEND" else "SEND"
        return Move(self.stage + onward, end, self.kind, self.microbatch)


Rows = list[list[Step | Pair | Move]]
"""What each rank does, in order: the steps of a plan, with or without the messages between them."""


def parse(text: str) -> Rows:
    r"""Return the actions of every rank, without empty cells and what FSDP adds.

    >>> [[str(action) for action in row] for row in parse("0F0,0SEND_F0,,0B0\r\n1RECV_F0,1F0,1B0")]
    [['0F0', '0SEND_F0', '0B0'], ['1RECV_F0', '1F0', '1B0']]

    Raises InputError for a cell that is no action.
    """
    return [
        [
            action
            for number, cell in enumerate(cells)
            if (action := _action(cell.strip(), f"line {line + 1}, cell {number + 1}"))
        ]
        for line, cells in _lines(text)
    ]


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each line of cells: the number, from 0, of its first line of text, and the cells."""
    reader = csv.reader(text.rstrip().splitlines(), strict=True)
    begin = 0
    try:
        for cells in reader:
            yield begin, cells
            begin = reader.line_num
    except csv.Error as error:
        open_quote = str(error) == "unexpected end of data"
        said = "a quote is opened and not closed" if open_quote else str(error)
        raise InputError(f"line {begin + 1}: this is no CSV: {said}") from None


def plan_of(rows: Rows) -> Plan:
    """Return the steps alone, without the messages."""
    return [[action for action in row if not isinstance(action, Move)] for row in rows]


def _action(cell: str, where: str) -> Step | Pair | Move | None:
    if not cell or _SHARDS.fullmatch(cell):
        return None
    if found := _STEP.fullmatch(cell):
        return _step(*found.groups())
    if found := _MOVE.fullmatch(cell):
        stage, end, kind, microbatch = found.groups()
        return Move(int(stage), end, kind, int(microbatch))
    if found := _PAIR.fullmatch(cell):
        return _pair([_STEP.fullmatch(member.strip()) for member in found.groups()], cell, where)
    raise InputError(
        f"{where}: {cell!r} is no step; one is written as 2F0, 2B0, 2I0, 2W0, 2SEND_F0 or "
        "(0F7;7B3)OVERLAP_F_B"
    )


def _step(stage: str, kind: str, microbatch: str) -> Step:
    return Step(int(stage), kind, int(microbatch))


def _pair(found: list[re.Match[str] | None], cell: str, where: str) -> Pair:
    steps = [_step(*member.groups()) for member in found if member]
    if [step.kind for step in steps] != ["F", "B"]:
        raise InputError(
            f"{where}: {cell!r} overlaps something other than a forward and a whole backward; "
            "a pair is written as (0F7;7B3)OVERLAP_F_B"
        )
    return Pair(*steps)
