"""What do NCCL's collectives cost inside a node, alone? Fitted to nccl-tests style tables.

The model is a ring's: seconds = base + rounds · hop + wire / (nominal · share), where rounds is
2 (n − 1) for an all-reduce, n − 1 for an all-gather or reduce-scatter and 1 for a p2p, and wire =
rounds · size / n is what each GPU sends. An all-to-all sends its n − 1 pieces in one round. Base
and hop are one pair per collective, shares are one per group size: NCCL reaches less of the link
with two GPUs than with eight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sim.graph import Floats
from traces.calibration.errors import Fit, fit_error, solve

ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}  # times n − 1
FITTED = {name: name for name in ROUNDS} | {"all_to_all": "alltoall"}
"""Each collective that is fitted, and its name in the tables."""


class CollectiveRows(NamedTuple):
    """Measured times of one collective: GPUs in the group, bytes of the full buffer, seconds."""

    gpus: Floats
    bytes: Floats
    seconds: Floats


def rounds(collective: str, gpus: Floats) -> Floats:
    """Return the rounds of a ring, each of size / n bytes; 1 for a p2p or an all-to-all."""
    return ROUNDS[collective] * (gpus - 1) if collective in ROUNDS else np.ones_like(gpus)


def wire(collective: str, rows: CollectiveRows) -> Floats:
    """Return the bytes that each GPU puts on its link."""
    if collective == "all_to_all":
        return rows.bytes * (rows.gpus - 1) / rows.gpus
    chunk = rows.bytes / rows.gpus if collective in ROUNDS else rows.bytes
    return rounds(collective, rows.gpus) * chunk


def fit_collective(collective: str, rows: CollectiveRows, nominal: float) -> Fit:
    """Fit base and hop [s], and the share of the nominal bandwidth [B/s] by group size."""
    sizes = np.unique(rows.gpus)
    which = np.searchsorted(sizes, rows.gpus)
    steps, sent = rounds(collective, rows.gpus), wire(collective, rows)

    def predict(x: Floats) -> Floats:
        latency: Floats = x[0] * 1e-6 + steps * x[1] * 1e-6
        return latency + sent / (nominal * x[2:][which])

    hop = 1.0 if np.ptp(steps) else 1e-9  # if all have equal rounds, base and hop cannot be told
    low = [0.0, 0.0, *[0.05] * len(sizes)]
    high = [1e3, hop * 100, *[1.1] * len(sizes)]
    start = [10.0, hop, *[0.7] * len(sizes)]
    x = solve(lambda x: np.log(predict(x) / rows.seconds), start, low, high)
    shares = {f"share_{n:.0f}": float(s) for n, s in zip(sizes, x[2:], strict=True)}
    constants: Mapping[str, float] = {"base": x[0] * 1e-6, "hop": x[1] * 1e-6, **shares}
    return Fit(constants, (fit_error(collective, predict(x), rows.seconds),))
