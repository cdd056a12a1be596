"""Finds when the threads of a recorded step held a core, as far as the recording tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from traces.recorded.run import Call as Recorded
from traces.recorded.run import StepCalls
from validation.processes.pipelines.calls import Call, Compute, Wait
from validation.processes.pipelines.priced import Workload

Spans = NDArray[np.float64]  # begin and end, in order


class Cores:
    """Which threads held a core when, in one step of timed stages."""

    def __init__(self, load: Workload, step: StepCalls, work: float) -> None:
        self._cores = load.cores
        self._held = [
            np.array([*_held(load, calls, recorded, work)], np.float64).reshape(-1, 2)
            for calls, recorded in zip(load.program, step.calls, strict=True)
            if load.cores
        ]

    def free(self, rank: int, now: float) -> bool:
        """Return whether a core was free for a thread of this rank, whatever else the rank did."""
        others = (spans for at, spans in enumerate(self._held) if at != rank)
        return not self._cores or sum(_inside(spans, now) for spans in others) < self._cores


def _held(
    load: Workload, calls: Sequence[Call], recorded: Sequence[Recorded], work: float
) -> Iterator[tuple[float, float]]:
    """Yield when a thread has a core: between its calls and in them, unless it sleeps or waits."""
    before = None
    for call, ran in zip(calls, recorded, strict=True):
        if before is not None:
            yield before, ran.start
        before = ran.end
        if isinstance(call, Compute):
            nominal = load.stages.nominal(call)
            yield ran.start, ran.start + min(work, nominal)
            yield ran.start + nominal, ran.end
        elif not isinstance(call, Wait):
            yield ran.start, ran.end


def _inside(spans: Spans, now: float) -> bool:
    """Return whether an instant lies in one of a thread's spans, which do not overlap."""
    at = int(np.searchsorted(spans[:, 0], now, side="right")) - 1
    return at >= 0 and bool(now < spans[at, 1])
