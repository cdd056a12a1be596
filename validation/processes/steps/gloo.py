"""Fits what gloo's collectives cost to recorded steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from schedules.input_error import InputError
from sim.graph import Communication
from traces.cpu_steps import CpuRun
from validation.processes.steps.costs import KINDS, sent

SWEPT = 10  # a row of a sweep is the mean of so many repetitions
Gloo = tuple[float, float, float]


def fitted(runs: Sequence[CpuRun], cores: int) -> tuple[dict[str, Gloo], tuple[float, ...]]:
    """Return what collectives cost (see :class:`Costs`), and samples over what is usual.

    A kind that is not seen in enough sizes to tell three constants is taken to cost as all do.
    """
    samples = [sample for run in runs for sample in _samples(run, cores)]
    if not samples:
        raise InputError("no recording has a collective, so nothing is known of gloo")
    rows = _usual(samples)
    gloo = {}
    for kind in {*KINDS.values()}:
        mine = [row for row in rows if row.kind == kind]
        enough = len({row.size for row in mine}) >= 3
        gloo[kind] = _least_squares(mine if enough else rows)
    usual = {(row.source, row.kind, row.size): row.seconds for row in rows}
    ratio = np.array([one.seconds / usual[one.source, one.kind, one.size] for one in samples])
    return gloo, tuple((ratio / ratio.mean()).tolist())


def _usual(samples: Sequence[Sample]) -> list[Row]:
    """Return, by run, kind and size, the median step's mean, since some steps are disturbed."""
    steps = defaultdict[tuple[str, str, float], defaultdict[int, list[float]]](
        lambda: defaultdict(list)
    )
    for one in samples:
        steps[one.source, one.kind, one.size][one.step].append(one.seconds)
    return [
        Row(*key, float(np.median([np.mean(found) for found in of.values()])),
            sum(map(len, of.values())))
        for key, of in steps.items()
    ]  # fmt: skip


def _least_squares(rows: Sequence[Row]) -> Gloo:
    """Fit by least squares of relative errors, weighted by count; no constant is negative."""
    if not any(row.seconds > 0 for row in rows):
        raise InputError("no collective of the recordings takes time that computing does not")
    size, seconds, count = np.array([row[2:] for row in rows if row.seconds > 0], float).T
    scale = np.sqrt(count) / seconds
    terms = np.stack([np.ones(len(size)), size, np.sqrt(size)], axis=1) * scale[:, None]
    latency, per_byte, per_root = nnls(terms, seconds * scale)[0].tolist()
    return latency, per_byte, per_root


class Row(NamedTuple):
    """Collectives of one run, kind and size: seconds of one, and how many were seen."""

    source: str
    kind: str
    size: float
    seconds: float
    often: int


class Sample(NamedTuple):
    """One collective: of which run, kind and step, bytes that a rank sends, seconds alone."""

    source: str
    kind: str
    step: int
    size: float
    seconds: float


def _samples(run: CpuRun, cores: int) -> Iterator[Sample]:
    """Yield collectives, corrected for what slows them, and the sweep of all-reduces.

    Beside main threads that compute, gloo's threads share ``cores`` with twice as many threads as
    ranks. Collectives that wait for another one of their own rank are left out.
    """
    ranks = tuple(range(run.world))
    slower = 1.0 - min(1.0, cores / (2 * run.world))
    before: tuple[int, float] = (-1, 0.0)
    for one in sorted(run.moved, key=lambda m: (m.step, m.begin_s)):
        if one.step > before[0] or one.begin_s >= before[1]:
            size = sent(Communication(one.collective, one.bytes, ranks, ""))
            alone = one.end_s - one.begin_s - slower * one.computing_s
            yield Sample(run.digest, KINDS[one.collective], one.step, size, alone)
            before = (one.step, one.end_s)
    for size, micro in run.facts.get("allreduce_us") or ():
        work = Communication("all_reduce", float(size), ranks, "")
        swept = Sample("", "reduce", 0, sent(work), float(micro) * 1e-6)
        yield from [swept] * SWEPT
