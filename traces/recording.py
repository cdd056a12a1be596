"""A recorded run: when everything happened, and what its reader found out on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sim import units
from sim.analysis.intervals import Intervals
from sim.graph import Floats
from sim.html import Shown, table
from sim.machine.hardware import Machine
from sim.timeline import Timeline
from traces.own.priced_machine import PricedMachine


class Selection(NamedTuple):
    """The part of a recording that is read; None means all of it."""

    step: int | None = None  # a training step, as the file numbers it
    ranks: Sequence[int] | None = None
    window: tuple[float, float] | None = None  # seconds from the recording's first op
    annotation: str | None = None  # only what was launched inside an annotation of this name
    instance: int = 0  # the number, from 0, of the annotation among those of that name on a rank
    names: Path | None = None  # a file of rules for names of kernels, asked before ours


Report = Callable[[str, int, int], None]
"""A function that is told what is being done, how much is done, of how much (0: unknown)."""


@dataclass(frozen=True, eq=False)
class Recording(Shown):
    """A timeline whose works are ``Fixed``, and the facts that only the file tells.

    Each part's work is the time in which its data moved, as far as that is known: the shortest of
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
    """The file's numbers of the steps 0, 1, ... of the graph, if it numbers them."""
    incomparable: str = ""
    """A sentence if the cost of stragglers is unknown, such as when a rank was not read."""
    operators: Mapping[tuple[int, str], Intervals] = field(default_factory=dict)
    """By rank and stream of the host: when that thread is inside an operator or a call of the GPU's
    driver, in seconds of the timeline (negative before its first op)."""
    clock_offsets: Mapping[int, float] = field(default_factory=dict)
    """Seconds that were added to each rank's clock to align it with the first rank's."""
    clock_drifts: Mapping[int, float] = field(default_factory=dict)
    """Further seconds that were added per second of each rank's clock."""
    clock_residual: float = 0.0
    """Seconds by which collectives still end apart after alignment (median)."""
    priced: PricedMachine | None = None
    """The machine of a timeline that was simulated, if its file has it and was read whole."""
    sms: Floats | None = None
    """(ops,): the share of its GPU's SMs that each op's communication holds; 0 where unknown."""

    def __repr__(self) -> str:
        """Return one line for a prompt."""
        return f"Recording: {self.format}, {self.timeline!r}"

    def _repr_html_(self) -> str:
        """Return a table of what was read, and what was noticed, for a notebook."""
        ranks = ", ".join(map(str, self.timeline.graph.ranks()[:8].tolist()))
        rows = [("files", len(self.files)), ("ranks", ranks), *self.counts.items()]
        rows += [("span", units.seconds(self.timeline.seconds))]
        return table(repr(self), [*rows, *(("note", sentence) for sentence in self.warnings)])

    @property
    def machine(self) -> Machine | None:
        """The machine that the timeline was simulated on, where its file has it."""
        return self.priced.machine if self.priced else None


def no_report(what: str, done: int, total: int) -> None:
    """Report nothing."""
