"""Finds what stragglers cost a recorded run, in the way that its format allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from schedules.input_error import InputError
from sim.analysis.activity import HOST as HOSTS
from sim.analysis.activity import activities
from sim.analysis.lateness import lateness
from sim.analysis.stragglers import falling, stragglers
from sim.graph import Graph
from sim.timeline import Timeline
from sim.whatif import healed
from traces import cut
from traces.own.priced_machine import PricedMachine, repeats
from traces.recording import Recording
from traces.replay import level, ways
from traces.replay.level import HOST, KERNELS, SORTS, TRANSFERS

MOST = 200_000
"""A run of more ops is not simulated again for this."""
LEAST = 0.5
"""At least this share of the time of kernels must have kernels alike on another rank."""
OFF = 0.02
"""A replay may miss the recording by at most this share."""


def slowdown(recording: Recording) -> dict[str, Any]:
    """Return ``slowdown``, the step over the same step without stragglers, or why it is unknown.

    ``method`` says how it was found: "equal operations", the published analysis of pipeline jobs,
    which is split by replica, stage, kind and step too; "simulated again", as ``run --stragglers``
    does, for a timeline of ours that names its machine; or "equal ranks", the recorded graph with
    all that is alike levelled (:mod:`traces.replay.level`). ``by_kind`` is the slowdown by kernels,
    transfers or the host alone. ``bound`` is the step over the step less the mean waiting for
    others. Where ranks, or some of what they do, cannot be compared, ``unknown`` is a sentence that
    says why; ``slowdown`` may then be None.
    """
    if recording.incomparable:
        unknown = {"slowdown": None, "method": None, "bound": None}
        return {**unknown, "unknown": recording.incomparable}
    graph = recording.timeline.graph
    late = lateness(recording.timeline)
    out: dict[str, Any] = {"slowdown": None, "method": None, "bound": late.slowdown}
    if recording.format != "stragglers" and len(graph) > MOST:
        return {**out, "unknown": f"the cost of stragglers is not found for over {MOST:,} ops"}
    try:
        return {**out, **_cost(recording)}
    except InputError as error:  # ops that wait for each other in a circle cannot be simulated
        return {**out, "unknown": f"the cost of stragglers is unknown: {error}"}


def _cost(recording: Recording) -> dict[str, Any]:
    if recording.format == "stragglers":
        return _of_pipeline(recording)
    if recording.priced and repeats(recording.timeline, recording.priced):
        return _simulated(recording.timeline, recording.priced)
    return _of_ranks(recording) if len(recording.timeline.graph.ranks()) > 1 else {}


def _simulated(timeline: Timeline, of: PricedMachine) -> dict[str, Any]:
    """Do as :func:`sim.whatif.stragglers.stragglers` does, on the machine that the file names."""

    def seconds(**heal: bool) -> float:
        return _gpu_seconds(healed(timeline.graph, of.machine, of.healthy, **heal))

    least = seconds()
    alone = {KERNELS: "kernels", TRANSFERS: "links", HOST: "pauses"}
    found = {of: seconds(**{heal: False}) / least for of, heal in alone.items()} if least else {}
    return _told(_gpu_seconds(timeline), least, found, "simulated again")


def _of_ranks(recording: Recording) -> dict[str, Any]:
    """Level all ranks, and each kind of time by itself."""
    apart = recording.format in ways.APART
    peers = level.Peers(ways.repeated(recording), recording.timeline, recording.sms, apart)
    base, recorded = _seconds(peers.base, apart), _seconds(recording.timeline, apart)
    if recorded and abs(base / recorded - 1) > OFF:
        return {
            "unknown": f"the cost of stragglers is unknown: simulated again, the recording takes "
            f"{base / recorded - 1:+.1%} of its time more"
        }
    compared = peers.compared()
    if compared.kernels < LEAST:
        return {
            "unknown": f"the cost of stragglers is unknown: {1 - compared.kernels:.0%} of the "
            "time of kernels is in ones that no other rank runs at the same place"
        }
    least = _seconds(peers.without()[2], apart)
    found = {}
    if least and base != least:
        for one in SORTS:
            others = peers.without([of for of in SORTS if of != one])[2]
            found[one] = _seconds(others, apart) / least
    out = _told(base, least, found, "equal ranks")
    said = _limits(compared)
    return out if "unknown" in out or not said else {**out, "unknown": said}


def _limits(compared: level.Compared) -> str:
    """Return a sentence about what the figure does not count."""
    said = []
    if compared.kernels < 1 - OFF:
        said.append(f"{1 - compared.kernels:.0%} of the time of kernels")
    if compared.transfers:
        said.append(f"transfers of {', '.join(compared.transfers)}")
    if not said:
        return ""
    return (
        f"{' and '.join(said)} cannot be compared with others at the same place, so their slowness "
        "is not in the slowdown"
    )


def _told(base: float, least: float, by_kind: Mapping[str, float], method: str) -> dict[str, Any]:
    """Return the figures, or why there are none: a step that levelling makes longer has none."""
    if not least:
        return {}
    slow = base / least
    if slow < 1.0:
        return {
            "unknown": "the cost of stragglers is unknown: the step in which all ranks are alike "
            f"is longer, by {least / base - 1:.2%}"
        }
    return {
        "slowdown": slow,
        "method": method,
        "by_kind": falling({of: max(found, 1.0) for of, found in by_kind.items()}),
    }


def _seconds(timeline: Timeline, apart: bool) -> float:
    """Return seconds from the first start on a GPU to the last end; a sum if steps stand apart."""
    if not apart:
        return _gpu_seconds(timeline)
    step = timeline.graph.step
    first, last = (np.full(int(step.max(initial=0)) + 1, of) for of in (np.inf, -np.inf))
    np.minimum.at(first, step, timeline.start)
    np.maximum.at(last, step, timeline.end)
    there = last >= first
    return float(np.sum((last - first)[there]))


def _gpu_seconds(timeline: Timeline) -> float:
    gpu = on_gpu(timeline.graph)
    return (cut.keep(timeline, gpu) if gpu.any() and not gpu.all() else timeline).seconds


def on_gpu(graph: Graph) -> cut.Flags:
    """Return which ops are not calls of the host, (ops,)."""
    kinds = activities(graph)
    return np.asarray(kinds.code != kinds.names.index(HOSTS))


def _of_pipeline(recording: Recording) -> dict[str, Any]:
    found = stragglers(recording.timeline)
    number = recording.steps
    return {
        "slowdown": found.slowdown,
        "method": "equal operations",
        "by_replica": {str(k): of for k, of in found.by_replica.items()},
        "by_stage": {str(k): of for k, of in found.by_stage.items()},
        "by_kind": dict(found.by_kind),
        "by_step": {str(number[k] if number else k): of for k, of in found.by_step.items()},
        "worst_ranks": list(found.worst_ranks),
        "worst_ranks_share": found.worst_ranks_share,
        "last_stage_share": found.last_stage_share,
    }
