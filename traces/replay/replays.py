"""Simulates a recording again, with the host as it was, as it usually is, or taking no time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from schedules.input_error import InputError
from sim import units, whatif
from sim.analysis.activity import HOST, activities
from sim.engine import DeadlockError, simulate
from sim.graph import Bools, Floats, Graph
from sim.html import Shown, table
from sim.machine.hardware import ideal
from sim.timeline import Timeline
from sim.whatif.grammar import LEVEL, parse
from traces import cut
from traces.own import recording as own
from traces.own.priced_machine import repeats
from traces.recording import Recording, Report, no_report
from traces.replay import level, ways
from traces.replay.ways import APART, pieces, usual


@dataclass(frozen=True, eq=False)
class Replay(Shown):
    """A recording, and the result of simulating it again: the same ops, at other times.

    Figures cover what ran on GPUs; calls of the host count only where there is nothing else.
    """

    recording: Recording
    timeline: Timeline
    hosts: str

    def __repr__(self) -> str:
        """Return one line for a prompt."""
        return f"Replay: hosts {self.hosts}, {self.timeline!r}"

    def _repr_html_(self) -> str:
        """Return the seconds of each step, recorded and replayed, for a notebook."""
        rows = [
            (step, units.seconds(recorded), units.seconds(replayed))
            for step, (recorded, replayed) in enumerate(zip(*self.steps(), strict=True))
        ]
        return table(repr(self), rows, ("step", "recorded", "replayed"))

    @cached_property
    def _both(self) -> tuple[Timeline, Timeline]:
        """Recorded and replayed ops of GPUs."""
        kinds = activities(self.recording.timeline.graph)
        gpu = kinds.code != kinds.names.index(HOST)
        if not gpu.any():
            return self.recording.timeline, self.timeline
        return cut.keep(self.recording.timeline, gpu), cut.keep(self.timeline, gpu)

    def steps(self) -> tuple[Floats, Floats]:
        """Return seconds from first start to last end of each step: recorded and replayed."""
        recorded, replayed = self._both
        return _spans(recorded), _spans(replayed)

    def of_rank(self, rank: int) -> tuple[float, float]:
        """Return the mean over steps of a rank's seconds from first start to last end, likewise."""
        mine = self._both[0].graph.rank == rank
        recorded, replayed = (_spans(cut.keep(of, mine)) for of in self._both)
        there = np.isfinite(recorded)
        return float(recorded[there].mean()), float(replayed[there].mean())

    def ranks(self) -> list[int]:
        """Return the ranks that have such ops."""
        out: list[int] = self._both[0].graph.ranks().tolist()
        return out

    def end_errors(self) -> Floats:
        """Return by how many seconds each op's end is off, counted from its step's start."""
        recorded, replayed = self._both
        return np.abs(_from_step(recorded) - _from_step(replayed))


def together(texts: Sequence[str]) -> list[str]:
    """Return each edit alone and, where there are several, all of them together.

    >>> together(["launch * 0.5", "lag * 0"])
    ['launch * 0.5', 'lag * 0', 'launch * 0.5; lag * 0']
    """
    return [*texts, *(["; ".join(texts)] if len(texts) > 1 else [])]


def edited(recording: Recording, graph: Graph, text: str) -> Graph:
    """Return the graph after edits. ``remove stragglers`` levels whole ranks, the host included.

    For tables of pipeline jobs, that is the ideal of the OSDI '25 study. For a timeline of ours
    that names its machine, it is the step that ``run --stragglers`` divides by.
    """
    for k, piece in enumerate(pieces(text)):
        if parse(piece) == [LEVEL]:
            graph = _levelled(recording, graph, edited=k > 0)
        else:
            graph, _ = whatif.edited(graph, ideal(graph), piece)
    return graph


def _levelled(recording: Recording, graph: Graph, edited: bool) -> Graph:
    timeline, of = recording.timeline, recording.priced
    if recording.format == "stragglers":
        return level.across_kinds(graph, timeline)
    if of and not edited and repeats(timeline, of):
        best = whatif.healed(timeline.graph, of.machine, of.healthy)
        return own.as_recorded(replace(recording, timeline=best))
    return level.across_ranks(graph, timeline, recording.sms, recording.format in APART)


def graph_of(recording: Recording, hosts: str) -> Graph:
    """Return the graph whose simulation replays a recording, with the host as ``hosts`` says.

    Its works are fixed: run it on :func:`sim.machine.hardware.ideal`. ``hosts`` is one of
    :func:`traces.replay.ways.ways`, or ``recorded``, which keeps every delay and so repeats the
    recording. Raises InputError for a way that its format does not have.
    """
    known = ways.ways(recording.format)
    if hosts == "recorded":
        return ways.repeated(recording)
    if hosts not in known:
        raise InputError(
            f"a recording of the format {recording.format} is replayed with hosts "
            f"{' or '.join(known)}, not {hosts}"
        )
    return ways.WAYS.get(recording.format, {}).get(hosts, ways.without_host)(recording)


def replay(
    recording: Recording,
    hosts: str | None = None,
    report: Report = no_report,
    what_if: str | None = None,
) -> Replay:
    """Simulate the recording again, as it was or with edits (:mod:`sim.whatif.grammar`).

    With edits the host's gaps are kept rather than its times (:func:`usual`). Raises InputError for
    a way that its format does not have, for what is no edit, or when its operations wait for each
    other in a circle.
    """
    chosen = hosts or (usual(recording, what_if) if what_if else ways.ways(recording.format)[0])
    graph = graph_of(recording, chosen)
    if what_if:
        graph = edited(recording, graph, what_if)
    try:
        if recording.format in APART:
            timeline = _step_by_step(recording, graph, report)
        else:
            timeline = simulate(graph, ideal(graph), lambda done, of: report("replaying", done, of))
    except DeadlockError as error:
        raise InputError(f"the recording cannot be replayed: {error}") from None
    return Replay(recording, _without_others(recording.timeline, timeline), chosen)


def _without_others(recorded: Timeline, replayed: Timeline) -> Timeline:
    """Return the recorded ops; a way may have put ops on streams of its own before them."""
    if len(replayed.graph) == len(recorded.graph):
        return replayed
    streams = {*recorded.graph.streams}
    there = np.array([name in streams for name in replayed.graph.streams])
    return cut.keep(replayed, there[replayed.graph.stream])


def only(found: Replay, step: int) -> Replay:
    """Return one step of a replay, as the file numbers it.

    Raises InputError if there is none of that number.
    """
    recording, graph = found.recording, found.timeline.graph
    numbers = recording.steps or tuple(range(int(graph.step.max()) + 1))
    if step not in numbers:
        raise InputError(f"there is no step {step}; there are {', '.join(map(str, numbers[:8]))}")
    kept = graph.step == numbers.index(step)
    recorded, replayed = (_alone(of, kept) for of in (recording.timeline, found.timeline))
    return Replay(replace(recording, timeline=recorded, steps=(step,)), replayed, found.hosts)


def _alone(timeline: Timeline, kept: Bools) -> Timeline:
    """Return some ops, all of which then belong to step 0."""
    part = cut.keep(timeline, kept)
    return replace(part, graph=replace(part.graph, step=np.zeros_like(part.graph.step)))


def _step_by_step(recording: Recording, graph: Graph, report: Report) -> Timeline:
    """Simulate every step alone, and put it where it began."""
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
    """Return first start and last end of each step, (steps,) each."""
    step = timeline.graph.step
    first, last = (np.full(int(step.max(initial=0)) + 1, of) for of in (np.inf, -np.inf))
    np.minimum.at(first, step, timeline.start)
    np.maximum.at(last, step, timeline.end)
    return first, last


def _spans(timeline: Timeline) -> Floats:
    first, last = _bounds(timeline)
    return np.asarray(last - first)


def _from_step(timeline: Timeline) -> Floats:
    return np.asarray(timeline.end - _bounds(timeline)[0][timeline.graph.step])
