"""The types for writing a schedule, a strategy, a collective or a trace format of your own.

See docs/extending for a page on each.
"""

from __future__ import annotations

from schedules import Pair, Plan, Step
from sim.builder.program import Collective, Kernel, Program
from sim.builder.strategies.draft import ProgramDraft
from sim.graph import Communication, Compute, Copy, Fixed
from sim.machine.cluster import Cluster
from sim.machine.collectives import ALGORITHMS, alone, traffic
from sim.machine.collectives.base import Hops, Traffic, UnsuitableError, place, put
from traces import reading
from traces.cut import select
from traces.kernel_names import rules
from traces.reading import Format
from traces.recording import Recording, Report, Selection

__all__ = [
    "ALGORITHMS",
    "Cluster",
    "Collective",
    "Communication",
    "Compute",
    "Copy",
    "Fixed",
    "Format",
    "Hops",
    "Kernel",
    "Pair",
    "Plan",
    "Program",
    "ProgramDraft",
    "Recording",
    "Report",
    "Selection",
    "Step",
    "Traffic",
    "UnsuitableError",
    "alone",
    "place",
    "put",
    "reading",
    "rules",
    "select",
    "traffic",
]
