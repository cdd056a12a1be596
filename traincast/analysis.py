"""The analyses as functions of a timeline, and what makes smaller tables of theirs.

``tc.analysis.path(result.timeline)`` is what ``tc.analyses()["path"](result)`` returns; here
editors and type checkers know the functions. One that is added to ``sim/analysis`` is here too.
"""

from __future__ import annotations

from typing import Any

from sim.analysis import analyses
from sim.analysis.breakdown import breakdown
from sim.analysis.bubbles import bubbles, by_peer, normalised
from sim.analysis.collectives import collectives
from sim.analysis.contention import contention
from sim.analysis.critical_path import critical_path
from sim.analysis.exposed import by_cause as exposed_by_cause
from sim.analysis.exposed import exposed
from sim.analysis.hidden import hidden, transfers
from sim.analysis.idle import bubble, idle
from sim.analysis.lateness import lateness
from sim.analysis.near_critical import near_critical
from sim.analysis.path import by_cause, by_straggler, path
from sim.analysis.roofline import roofline
from sim.analysis.shares import shares
from sim.analysis.slack import slack
from sim.analysis.stragglers import stragglers
from sim.analysis.traffic import traffic

__all__ = [
    "breakdown",
    "bubble",
    "bubbles",
    "by_cause",
    "by_peer",
    "by_straggler",
    "collectives",
    "contention",
    "critical_path",
    "exposed",
    "exposed_by_cause",
    "hidden",
    "idle",
    "lateness",
    "near_critical",
    "normalised",
    "path",
    "roofline",
    "shares",
    "slack",
    "stragglers",
    "traffic",
    "transfers",
]


def __getattr__(name: str) -> Any:
    """Find an analysis whose file was added."""
    found = {} if name.startswith("_") else analyses()
    if name not in found:
        raise AttributeError(f"module 'traincast.analysis' has no attribute {name!r}")
    return found[name].function
