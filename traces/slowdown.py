"""What stragglers cost a recorded run, in the way that its format allows."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.analysis.lateness import lateness
from sim.analysis.stragglers import stragglers
from traces.recording import Recording
from traces.replays import replay, usual

MOST = 200_000
"""Ops above which a run is not simulated again for this."""


def slowdown(recording: Recording) -> dict[str, Any]:
    """``slowdown``: the step over the same without stragglers; None where it cannot be told.

    ``method`` says how: "equal operations", the published analysis of pipeline jobs, which is split
    by replica, stage, kind and step too; or "equal ranks", two replays, as ``replay --what-if
    "remove stragglers"`` does. ``bound`` is the step over the step less mean waiting for others.
    Where ranks cannot be compared all are None, and ``unknown`` is a sentence that says why.
    """
    if recording.incomparable:
        unknown = {"slowdown": None, "method": None, "bound": None}
        return {**unknown, "unknown": recording.incomparable}
    late = lateness(recording.timeline)
    out: dict[str, Any] = {"slowdown": None, "method": None, "bound": late.slowdown}
    if recording.format == "stragglers":
        return {**out, **_of_pipeline(recording)}
    if len(recording.timeline.graph.ranks()) > 1 and len(recording.timeline.graph) <= MOST:
        hosts = usual(recording.format)
        before = replay(recording, hosts).steps()[1]
        after = replay(recording, hosts, what_if="remove stragglers").steps()[1]
        took, least = (float(np.nansum(of)) for of in (before, after))  # nan: steps not read
        if least:
            out |= {"slowdown": took / least, "method": "equal ranks"}
    return out


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
