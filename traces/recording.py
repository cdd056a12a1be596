"""A recorded run: when everything happened, and what its reader found out on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from sim.analysis.intervals import Intervals
from sim.graph import Floats
from sim.machine.hardware import Machine
from sim.timeline import Timeline
from traces.own.priced import Priced


class Selection(NamedTuple):
    """What of a recording is read; None: all of it."""

    step: int | None = None  # a training step, as the file numbers it
    ranks: Sequence[int] | None = None
    window: tuple[float, float] | None = None  # seconds from the recording's first op
    annotation: str | None = None  # only what was launched inside an annotation of this name
    instance: int = 0  # the how manieth of that name on each rank, from 0
    names: Path | None = None  # a file of rules for names of kernels, asked before ours


class Report(Protocol):
    """Is told what is being done, how much of it is done, and how much there is (0: unknown)."""

    def __call__(self, what: str, done: int, total: int, /) -> None:  # noqa: D102
        ...


@dataclass(frozen=True, eq=False)
class Recording:
    """A timeline whose works are ``Fixed``, and the facts that only the file could tell.

    Each part's work is the time in which its data moved, as far as it can be told: the shortest of
    its members. So simulating the graph replays the run.
    """

    timeline: Timeline
    format: str  # "kineto", "stragglers", ...: the module of ``traces`` that read it
    files: tuple[Path, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    """gpu_ops, gpu_ops_linked (to their launch), collectives, collectives_matched (over ranks)."""
    warnings: tuple[str, ...] = ()
    """Sentences: what was missing or looked wrong, and what was done about it."""
    steps: tuple[int, ...] = ()
    """What the file calls the steps 0, 1, ... of the graph, where it numbers any."""
    incomparable: str = ""
    """A sentence, where what stragglers cost cannot be said, such as when a rank was not read."""
    operators: Mapping[tuple[int, str], Intervals] = field(default_factory=dict)
    """By rank and stream of the host: when that thread is inside an operator or a call of the GPU's
    driver, in seconds of the timeline (what was before its first op is negative)."""
    clock_offsets: Mapping[int, float] = field(default_factory=dict)
    """Seconds that were added to each rank's clock to align it with the first rank's."""
    clock_drifts: Mapping[int, float] = field(default_factory=dict)
    """Seconds more that were added per second of each rank's clock."""
    clock_residual: float = 0.0
    """Seconds by which collectives still end apart after alignment (median)."""
    priced: Priced | None = None
    """The machine of a timeline that was simulated, if its file has it and was read whole."""
    sms: Floats | None = None
    """Of each op the share of its GPU's SMs that its communication holds; 0 where unknown."""

    @property
    def machine(self) -> Machine | None:
        """The machine that the timeline was simulated on, where its file has it."""
        return self.priced.machine if self.priced else None


def no_report(what: str, done: int, total: int) -> None:
    """Report nothing."""
