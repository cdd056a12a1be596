"""Measures what issuing ops costs a host: torch's modules at sizes where computing is nothing."""

from __future__ import annotations

from typing import Any

from sim.machine.host_prices import KERNELS, SECTION, TRANSFERS
from traces.record import machine, workers

FAKE = 8
"""Ranks over which FSDP2 believes to shard; nothing is sent."""


def record(timeout: float = 600.0) -> dict[str, Any]:
    """Return the host's prices as :mod:`sim.machine.host_prices` reads them, and what it counted.

    ``operators`` has the operators that torch dispatches for each class, views left out, forward
    and backward; on a GPU each launches a kernel. Raises InputError where a worker failed.
    """
    machine.require_torch()
    found = workers.run([{"task": "host_run"}], 1, timeout)[0][0]
    units = workers.run([{"task": "host_units"}], 1, timeout, fake=FAKE)[0][0]
    rows = found["rows"]
    launch = rows["launch"]
    passes = {
        name: {kind: rows[kind][at] / launch for kind in KERNELS}
        for at, name in enumerate(("forward", "backward"))
    }
    transfers = {kind: {**found["transfers"], **units}[kind] for kind in TRANSFERS}
    about = {key: found[key] for key in ("device", "gpu", "operators")}
    return {**about, SECTION: {"launch": launch, **passes, "transfers": transfers}}
