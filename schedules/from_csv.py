"""Any order: read from torch's CSV, a line per rank, such as ``0F0,0F1,0B0,0B1``."""

from __future__ import annotations

from pathlib import Path

from schedules import Plan
from schedules._csv import Move, parse, plan_of
from schedules._legality import check_plan
from schedules._messages import check_messages


def from_csv(path: str | Path, policy: str = "direction") -> Plan:
    """The order written in a file in torch's format ``compute_only`` or ``compute_comms``.

    Messages in the file are checked and left out: the streams of ``policy`` carry them. So are
    empty cells, and UNSHARD, RESHARD and REDUCE_GRAD, which are FSDP's.

    Raises ValueError, in one sentence, for what is no order, or one that cannot run.
    """
    path = Path(path)
    try:
        rows = parse(path.read_text(encoding="utf-8-sig"))
        plan = plan_of(rows)
        check_plan(plan, policy)
        if any(isinstance(action, Move) for row in rows for action in row):
            check_messages(rows, policy)
    except OSError as error:
        raise ValueError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: this is no text") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return plan
