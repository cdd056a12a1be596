"""Measures kernels and transfers for calibration: sizes and seconds, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schedules.input_error import InputError
from traces.record import machine, workers

BETWEEN = ("p2p", "all_reduce")
"""Parts that need several ranks."""
WITHIN = ("launch", "memory", "elementwise", "attention", "block", "gemm")
"""Parts that one rank measures."""
PARTS = (*BETWEEN, *WITHIN)


def record(
    parts: Sequence[str], ranks: int = 1, seconds: float = 60.0, timeout: float = 600.0
) -> dict[str, Any]:
    """Return rows of each part from rank 0, measured for about ``seconds`` in all.

    Raises InputError for an unknown part, or a worker that failed.
    """
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise InputError(f"record sweep knows {', '.join(PARTS)}, not {unknown[0]!r}")
    if ranks < 2 and (alone := [part for part in parts if part in BETWEEN]):
        raise InputError(f"{alone[0]} is measured between ranks; give --ranks 2, or more")
    if not 0 < seconds < float("inf"):
        raise InputError(f"--seconds {seconds:g} must be a time above 0")
    machine.require_torch()
    task = {"task": "sweep_run", "parts": list(parts), "seconds": seconds}
    found: dict[str, Any] = workers.run([task], ranks, timeout)[0][0]
    return found
