"""Writes how far predicted collectives are from public nccl-tests: ``validation/collectives.md``.

``python -m traces.calibration.nccl_report`` writes the page again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from sim.table import markdown, table
from traces.calibration.nccl_rows import Row, error, predicted, rows, summary

PAGE = Path("validation/collectives.md")
LARGE = 64 * 2**20 - 4096
"""Bytes from which buffers count as large; those of all-gathers are whole chunks, a little less."""
HEAD = """# Collectives against public nccl-tests

Made by `python -m traces.calibration.nccl_report` from `traces/calibration/nccl_tests.csv`, which
names each row's source. Errors are of predicted against measured time, of a collective alone: mean
and max of |error|, and bias, the mean signed error, which is below 0 where predictions are too
fast. "fit": the constants are fitted to these rows (`python -m traces.calibration.between_nodes`);
"check": held out. Errors of the fits inside a node, of at most 512 MiB, are in
[calibration.md](calibration.md).

"2 x 8" are two nodes and 8 GPUs of each. Machines are
[topologies](../docs/machine.md#machines-that-come-along), and `a100_4nic` is nodes of 8 A100 with
four ports. Algorithm "auto" means that the run left the choice to NCCL. Single rows below name the
algorithm that is simulated there.

Clusters of the same hardware differ: between four nodes of H100, rings reach 366 GB/s on one and
325 on another; between 46 to 64 nodes of B200, 389 on one and 291 on another. One constant stands
for both, and so errs on each.
"""
SINGLE = """
## Rows held out, and all of ten nodes or more

"""


def page() -> str:
    """Return the page: errors by family, then single rows."""
    some = [row for row in rows() if row.use == "check" or (row.nodes > 8 and row.gpus == 8)]
    return f"{HEAD}\n{_families(rows())}\n{SINGLE}{_single(some)}\n"


def _families(all_rows: Sequence[Row]) -> str:
    def family(row: Row) -> tuple[str, int, int, str, str, str, str]:
        size = "from 64 MiB" if row.bytes >= LARGE else "below 64 MiB"
        return (*row[:5], row.use, size)

    groups = groupby(sorted(all_rows, key=family), family)
    found = [(*key, *summary(list(group))) for key, group in groups]
    return markdown(
        table(
            found, "machine", ("nodes x GPUs", _nodes, "", False), ("collective", 3),
            ("algorithm", 4), ("use", 5), ("buffers", 6), ("rows", 7, "", False),
            ("mean", 8, ".1%", False), ("bias", 9, "+.1%", False), ("max", 10, ".1%", False),
            left=True,
        )
    )  # fmt: skip


def _nodes(row: Row | tuple[Any, ...]) -> str:
    return f"{row[1]} x {row[2]}"


def _single(some: Sequence[Row]) -> str:
    return markdown(
        table(
            some, ("machine", "machine"), ("nodes x GPUs", _nodes, "", False),
            ("collective", "collective"), ("algorithm", lambda row: predicted(row)[0].algorithm),
            ("buffer", lambda row: _size(row.bytes), "", False),
            ("measured", lambda row: f"{row.us:,.1f} us", "", False),
            ("predicted", lambda row: f"{predicted(row)[1] * 1e6:,.1f} us", "", False),
            ("error", error, "+.1%", False), ("use", "use"),
            left=True,
        )
    )  # fmt: skip


def _size(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB" if count >= 2**20 else f"{count:,} B"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
