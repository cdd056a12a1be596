"""Pipeline orders as torch reads and writes them: one line of steps per rank.

This is the ``compute_only`` format of ``torch.distributed.pipelining``, which its runtime loads
with ``_load_csv``.
"""

from __future__ import annotations

import csv
import io

from schedules import Plan


def text(plan: Plan) -> str:
    r"""The plan as CSV, lines ended as torch ends them.

    >>> from schedules import load
    >>> text(load("gpipe")(2, 1))
    '0F0,0B0\r\n1F0,1B0\r\n'
    """
    out = io.StringIO()
    csv.writer(out).writerows(plan)
    return out.getvalue()
