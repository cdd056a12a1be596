"""How much slower is arithmetic beside communication? From `record sweep overlap`.

Beside a transfer that holds ``sms`` SMs and a share h of the memory bandwidth, products keep
(1 - sms / all SMs) (1 - contention h) of their speed. SMs, and bytes of memory per byte sent, are
those of the topology; how fast the transfer was beside the products is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sim.machine.cluster import Gpu
from sim.machine.price import OWN_HBM
from traces.calibration.load_clock import Fitted
from traces.calibration.load_rows import Beside

SENT = {"all_gather": 1.0, "reduce_scatter": 1.0, "all_reduce": 2.0}
"""Times that a ring's rank sends (n - 1) / n of the buffer."""
COPIES = {"peer": OWN_HBM["copy"], "d2h": 1.0, "h2d": 1.0}
"""Bytes of memory per byte of a copy that takes no SM."""
LEAST = 0.05  # a smaller share of the memory bandwidth slows products by too little to be seen


class Slowed(NamedTuple):
    """A row: the share of memory bandwidth that was taken, and of speed that its loss explains."""

    what: str
    taken: float
    kept: float  # of the speed that SMs leave


def contention(gpu: Gpu, some: Sequence[Beside]) -> Fitted | None:
    """Return the loss of speed over the share of memory bandwidth; None where none was taken."""
    found = [row for row in (slowed(gpu, one) for one in some) if row and row.taken >= LEAST]
    if not found:
        return None
    taken = np.array([row.taken for row in found])
    lost = 1.0 - np.array([row.kept for row in found])
    beta = float(taken @ lost / (taken @ taken))
    off = lost - beta * taken
    error = np.sqrt(off @ off / max(len(off) - 1, 1) / (taken @ taken))
    return Fitted(np.array([beta]), np.array([error]))


def slowed(gpu: Gpu, row: Beside) -> Slowed | None:
    """Return what a row says; None for a transfer whose traffic is not known.

    An all-reduce may run as a ring or in the switch (NVLS), which moves other bytes.
    """
    table: Mapping[str, Any] = gpu.costs.get("communication", {})
    sms, hbm = table.get("sms", {}), table.get("hbm", {})
    if row.what in COPIES:
        held, moved = 0, COPIES[row.what] * row.bytes
    elif row.what in hbm and not (row.what == "all_reduce" and "nvls" in sms):
        held, share = int(sms.get(row.what, 0)), (row.ranks - 1) / row.ranks
        moved = hbm[row.what] * SENT[row.what] * share * row.bytes
    else:
        return None
    taken = min(moved / row.transfer / gpu.memory_bandwidth, 1.0)
    return Slowed(row.what, taken, 1.0 / row.slowdown / (1.0 - held / gpu.sms))
