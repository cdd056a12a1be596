"""Measures kinds of work that take turns for seconds: how long each takes, and what is drawn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from traces.record.load_sustain import product
from traces.record.load_tape import Group, Mark, Tape
from traces.record.sweep_time import random
from traces.record.workers import Here

PERIOD = (
    0.01  # seconds in which every work has its turn, once at least: shorter than a clock's change
)
SETTLED = 0.4  # share of the time after which clock and power are taken to be steady
WAIT = 0.001  # seconds of one kernel of one thread, which stands for waiting
ELEMENTS = 1 << 27  # of what a kernel limited by memory reads and writes

Run = Callable[[], object]


def measure(tape: Tape, facts: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return each work's seconds from rest and in the mixture, and the sensors' columns.

    ``burst_s`` is how long the short run from rest was.
    """
    shares: Mapping[str, float] = facts["works"]
    runs = {work: RUNS[work](tape) for work in shares}
    alone = {work: tape.probe(run) for work, run in runs.items()}
    period = max(PERIOD, *(alone[work][0] / share for work, share in shares.items()))
    groups = [
        Group(work, round(share * period / alone[work][0]), alone[work][0], runs[work])
        for work, share in shares.items()
    ]
    tape.rest()
    marks = tape.play(itertools.cycle(groups), seconds)
    took = _took(marks, SETTLED * marks[-1].at)
    rows = [
        {"work": work, "share": share, "alone_s": alone[work][0], "burst_s": alone[work][1],
         **took[work]}
        for work, share in shares.items()
    ]  # fmt: skip
    return {"works": rows, "settled_s": SETTLED * marks[-1].at, "samples": tape.samples}


def _took(marks: Sequence[Mark], after: float) -> dict[str, dict[str, float]]:
    """Return the seconds of one run, and of all of them, of each work once it is steady."""
    sums = {mark.work: [0, 0.0] for mark in marks}
    for one, two in itertools.pairwise(marks):
        if one.at >= after:
            sums[two.work][0] += two.runs
            sums[two.work][1] += two.at - one.at
    return {work: {"s": s / max(count, 1), "total_s": s} for work, (count, s) in sums.items()}


def _tensor(tape: Tape) -> Run:
    return product(tape, "square")[1]


def _memory(tape: Tape) -> Run:
    import torch

    size = ELEMENTS >> (8 if tape.here.device == "cpu" else 0)
    x, y, z = (random(tape.here, size) for _ in range(3))
    return lambda: torch.add(x, y, out=z)


def _attention(tape: Tape) -> Run:
    from torch.nn.functional import scaled_dot_product_attention

    shape = (1, 2, 256, 64) if tape.here.device == "cpu" else (4, 16, 4096, 128)
    q, k, v = (random(tape.here, *shape) for _ in range(3))
    return lambda: scaled_dot_product_attention(q, k, v, is_causal=True)


def _wait(tape: Tape) -> Run:
    spin = spinner(tape.here)
    return lambda: spin(WAIT)


def spinner(here: Here) -> Callable[[float], None]:
    """Return a function that lets seconds pass on the device while it does nothing."""
    if here.device == "cpu":
        import time

        return time.sleep
    from traces.record import stages

    return stages.spinner()


RUNS: Mapping[str, Callable[[Tape], Run]] = {
    "tensor": _tensor,
    "memory": _memory,
    "attention": _attention,
    "wait": _wait,
}
