"""Measures products that run back to back for seconds: how many were done by when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from traces.record.load import SHAPES
from traces.record.load_tape import Group, Tape
from traces.record.sweep_time import dtype, dtype_name, random

GROWTH = 0.04  # of the launches so far until the next mark
LONGEST = 0.1  # seconds between two marks
ON_CPU = 16  # sizes are divided by this


def measure(tape: Tape, facts: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return launches and seconds at marks from rest on, and the sensors' columns."""
    sizes, run = product(tape, facts["shape"], facts["data"])
    once, _ = tape.probe(run)
    tape.rest()
    marks = tape.play(_growing(run, once), seconds)
    done, launches = 0, []
    for mark in marks:
        done += mark.runs
        launches.append(done)
    return {
        **sizes, "launches": launches, "seconds": [mark.at for mark in marks],
        "samples": tape.samples,
    }  # fmt: skip


def product(
    tape: Tape, shape: str, data: str = "random"
) -> tuple[dict[str, Any], Callable[[], object]]:
    """Return the sizes of a product and what computes it once."""
    import torch
    from torch.nn.functional import linear

    here = tape.here
    m, n, k = (size // (ON_CPU if here.device == "cpu" else 1) for size in SHAPES[shape])
    if data == "zeros":
        a, b = (torch.zeros(rows, k, device=here.device, dtype=dtype(here)) for rows in (m, n))
    else:
        a, b = random(here, m, k), random(here, n, k)
    sizes = {"m": m, "n": n, "k": k, "dtype": dtype_name(here)}
    return sizes, lambda: linear(a, b)


def _growing(run: Callable[[], object], once: float) -> Iterator[Group]:
    """Yield groups without end: fine at the begin, where the clock falls."""
    done = 0
    while True:
        count = max(1, min(round(GROWTH * done), round(LONGEST / once)))
        yield Group("tensor", count, once, run)
        done += count
