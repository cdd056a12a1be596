"""The ways of ``--hosts``: a recording as a graph, its host as it was, as usual, or as nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from sim.graph import Fixed, Graph
from sim.whatif.grammar import LEVEL, parse
from traces.own import recording as own
from traces.recording import Recording
from traces.replay import gaps, hosts

Way = Callable[[Recording], Graph]


def without_host(recording: Recording) -> Graph:
    """Return the graph of durations and waits alone: no lags, and host calls take no time."""
    graph = recording.timeline.graph
    if not all(isinstance(work, Fixed) for work in graph.works):
        graph = own.as_recorded(recording)
    works = [replaced(work) for work in graph.works]
    none = np.zeros(len(graph))
    return replace(graph, works=tuple(works), lag=none, wait_lag=np.zeros(len(graph.wait_on)))


def replaced(work: object) -> Fixed:
    """Return the fixed work, without length if it is the host's."""
    assert isinstance(work, Fixed)
    return work._replace(seconds=0.0) if work.kind == "host" else work


WAYS: Mapping[str, Mapping[str, Way]] = {
    "kineto": {"anchored": hosts.anchored, "modelled": hosts.modelled},
    "stragglers": {"anchored": gaps.anchored, "modelled": gaps.modelled},
    "recorded": {"anchored": gaps.anchored, "modelled": gaps.modelled},
    "chakra": {"anchored": own.as_recorded},
    "nsys": {"anchored": gaps.anchored},
    "traincast": {"anchored": own.as_recorded},
}
"""By format, the ways of ``--hosts`` besides none."""
APART = frozenset({"stragglers", "recorded"})
"""Formats whose steps were sampled out of many: each is replayed by itself."""


def ways(format_: str) -> tuple[str, ...]:
    """Return what ``--hosts`` may be for a format; the first is the default."""
    return (*WAYS.get(format_, {}), "none")


def usual(recording: Recording, text: str) -> str:
    """Return the way in which an edit shows: a host tied to its recorded times never gets faster.

    Without stragglers, the host takes the gaps of other steps, or none where there is one step: its
    own times would include the waits for peers. Timelines of ours have no such times.
    """
    known = ways(recording.format)
    levels = LEVEL in [edit for piece in pieces(text) for edit in parse(piece)]
    if not levels or recording.format == "traincast":
        return "modelled" if recording.format == "kineto" else known[0]
    several = bool(recording.timeline.graph.step.any())
    return "modelled" if several and "modelled" in known else "none"


def repeated(recording: Recording) -> Graph:
    """Return the recorded graph with fixed works, and every unexplained delay as a lag."""
    if recording.format == "kineto":
        return recording.timeline.graph
    way = WAYS.get(recording.format, {}).get("anchored", without_host)
    return way(recording)


def pieces(text: str) -> list[str]:
    """Return the edits of a text, one by one."""
    return [*filter(str.strip, text.split(";"))]
