"""A recording simulated again, with the host as it was, as it usually is, or taking no time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sim.engine import DeadlockError, simulate
from sim.graph import Fixed, Floats, Graph
from sim.hardware import ideal
from sim.timeline import Timeline
from traces import cut, gaps, own
from traces.recording import Recording, Report, no_report

Way = Callable[[Recording], Graph]


def without_host(recording: Recording) -> Graph:
    """The graph from durations and waits alone: no lags, and calls of the host take no time."""
    graph = recording.timeline.graph
    if not all(isinstance(work, Fixed) for work in graph.works):
        graph = own.as_recorded(recording)
    works = [replaced(work) for work in graph.works]
    none = np.zeros(len(graph))
    return replace(graph, works=tuple(works), lag=none, wait_lag=np.zeros(len(graph.wait_on)))


def replaced(work: object) -> Fixed:
    """The fixed work; of no length if it is the host's."""
    assert isinstance(work, Fixed)
    return work._replace(seconds=0.0) if work.kind == "host" else work


WAYS: Mapping[str, Mapping[str, Way]] = {
    "stragglers": {"anchored": gaps.anchored, "modelled": gaps.modelled},
    "recorded": {"anchored": gaps.anchored, "modelled": gaps.modelled},
    "chakra": {"anchored": own.as_recorded},
    "nsys": {"anchored": gaps.anchored},
    "traincast": {"anchored": own.as_recorded},
}
"""By format, what ``--hosts`` may be besides none."""
APART = frozenset({"stragglers", "recorded"})
"""Formats whose steps were sampled out of many: each is replayed by itself."""


@dataclass(frozen=True, eq=False)
class Replay:
    """A recording and what came of simulating it again; both count from their first start."""

    recording: Recording
    timeline: Timeline
    hosts: str

    def steps(self) -> tuple[Floats, Floats]:
        """Seconds from first start to last end of each step: recorded, replayed."""
        return _spans(self.recording.timeline), _spans(self.timeline)

    def of_rank(self, rank: int) -> tuple[float, float]:
        """The mean over steps of a rank's seconds from first start to last end, likewise."""
        mine = self.timeline.graph.rank == rank
        both = (_spans(cut.keep(of, mine)) for of in (self.recording.timeline, self.timeline))
        recorded, replayed = (float(of[np.isfinite(of)].mean()) for of in both)
        return recorded, replayed

    def end_errors(self) -> Floats:
        """By how many seconds each op ends too early or late, counted from its step's start."""
        return np.abs(_from_step(self.recording.timeline) - _from_step(self.timeline))


def ways(format_: str) -> tuple[str, ...]:
    """What ``--hosts`` may be for a format; the first is meant unless something is said."""
    return (*WAYS.get(format_, {}), "none")


def replay(recording: Recording, hosts: str | None = None, report: Report = no_report) -> Replay:
    """Simulate the recording again.

    Raises ValueError for a way that its format does not have, or when its operations wait for each
    other in a circle.
    """
    known = ways(recording.format)
    chosen = known[0] if hosts is None else hosts
    if chosen not in known:
        raise ValueError(
            f"a recording of the format {recording.format} is replayed with hosts "
            f"{' or '.join(known)}, and not {chosen}"
        )
    graph = WAYS.get(recording.format, {}).get(chosen, without_host)(recording)
    try:
        if recording.format in APART:
            timeline = _step_by_step(recording, graph, report)
        else:
            timeline = simulate(graph, ideal(graph), lambda done, of: report("replaying", done, of))
    except DeadlockError as error:
        raise ValueError(f"the recording cannot be replayed: {error}") from None
    return Replay(recording, timeline, chosen)


def only(found: Replay, step: int) -> Replay:
    """One step of a replay, as the file numbers it; ValueError if there is none of that number."""
    recording, graph = found.recording, found.timeline.graph
    numbers = recording.steps or tuple(range(int(graph.step.max()) + 1))
    if step not in numbers:
        raise ValueError(f"there is no step {step}; there are {', '.join(map(str, numbers[:8]))}")
    kept = graph.step == numbers.index(step)
    recorded, replayed = (_alone(of, kept) for of in (recording.timeline, found.timeline))
    return Replay(replace(recording, timeline=recorded, steps=(step,)), replayed, found.hosts)


def _alone(timeline: Timeline, kept: NDArray[np.bool_]) -> Timeline:
    """Some ops, all of which are of step 0 then."""
    part = cut.keep(timeline, kept)
    return replace(part, graph=replace(part.graph, step=np.zeros_like(part.graph.step)))


def _step_by_step(recording: Recording, graph: Graph, report: Report) -> Timeline:
    """Every step alone, put where it began."""
    start, end = np.zeros(len(graph)), np.zeros(len(graph))
    steps = np.unique(graph.step).tolist()
    for number, step in enumerate(steps):
        report("replaying", number, len(steps))
        ops = np.flatnonzero(graph.step == step)
        alone = cut.subgraph(graph, graph.step == step)
        ran = simulate(alone, ideal(alone))
        begin = recording.timeline.start[ops].min()
        start[ops], end[ops] = ran.start + begin, ran.end + begin
    return Timeline(graph, start, end)


def _bounds(timeline: Timeline) -> tuple[Floats, Floats]:
    """First start and last end of each step."""
    step = timeline.graph.step
    first, last = (np.full(int(step.max(initial=0)) + 1, of) for of in (np.inf, -np.inf))
    np.minimum.at(first, step, timeline.start)
    np.maximum.at(last, step, timeline.end)
    return first, last


def _spans(timeline: Timeline) -> Floats:
    first, last = _bounds(timeline)
    return np.asarray(last - first)


def _from_step(timeline: Timeline) -> NDArray[np.float64]:
    return np.asarray(timeline.end - _bounds(timeline)[0][timeline.graph.step])
