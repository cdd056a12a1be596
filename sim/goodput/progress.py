"""How far a run has come: steps that are done, and those that a failure would not lose.

Steps go on, and stop for each checkpoint; a checkpoint that is not yet safe delays the next one.
While nothing changes, all cycles of steps and checkpoint are alike, so many are done at once.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from sim.goodput.pace import Pace


class Mark(NamedTuple):
    """A state of the model: the steps behind it, and by how much slow nodes made these longer."""

    steps: float
    slow: float  # seconds


BEGIN = Mark(0.0, 0.0)


@dataclass
class Progress:
    """A run between failures."""

    pace: Pace
    now: Mark = BEGIN
    saved: Mark = BEGIN  # what a failure leaves
    copied: Mark | None = None  # the checkpoint that is being written
    settling: float = 0.0  # seconds until it is safe
    last: float = 0.0  # steps up to the latest checkpoint, safe or not
    pause: float = 0.0  # seconds until steps go on
    stalled: float = 0.0  # seconds of all pauses so far

    @property
    def finished(self) -> bool:
        """Whether the last step is done and safe."""
        return self.saved.steps >= self.pace.steps

    def ahead(self, factor: float) -> float:
        """Return the seconds to the end, if no failure comes and steps keep this factor."""
        return copy(self).advance(inf, factor)

    def advance(self, seconds: float, factor: float = 1.0) -> float:
        """Go on for so many seconds, in which steps take ``factor`` times as long.

        Return the seconds that it took: fewer where the run ends before.
        """
        used = 0.0
        while used < seconds and not self.finished:
            used += self._leap(seconds - used, factor) or self._part(seconds - used, factor)
        return used

    def lose(self) -> float:
        """Go back to what is safe; return the seconds that the steps since then have taken."""
        steps, slow = self.now.steps - self.saved.steps, self.now.slow - self.saved.slow
        self.now, self.last, self.copied = self.saved, self.saved.steps, None
        self.settling = self.pause = 0.0
        return steps * self.pace.step + slow

    def _leap(self, left: float, factor: float) -> float:
        """Do all whole cycles at once that fit before the run's last one; return their seconds."""
        p, costs = self.pace, self.pace.costs
        fresh = self.settling == costs.settle if self.copied else not costs.settle
        if self.pause or self.now.steps > self.last or not fresh:
            return 0.0
        work = p.interval * p.step
        stall = costs.stall + p.wait(work * factor)
        cycles = (p.steps - self.now.steps - 1) // p.interval
        if left < inf:  # which // makes no number
            cycles = min(cycles, left // (work * factor + stall))
        if cycles < 1:
            return 0.0
        slow = work * (factor - 1.0)
        before = cycles - (1 if costs.settle else 0)
        self.saved = Mark(self.now.steps + before * p.interval, self.now.slow + before * slow)
        self.now = Mark(self.now.steps + cycles * p.interval, self.now.slow + cycles * slow)
        self.last, self.stalled = self.now.steps, self.stalled + cycles * stall
        if self.copied:
            self.copied = self.now
        return float(cycles * (work * factor + stall))

    def _part(self, left: float, factor: float) -> float:
        """Do the rest of a pause, or the steps up to the next checkpoint; return the seconds."""
        if self.pause:
            took = min(left, self.pause)
            self.pause -= took
            self.stalled += took
            self._settle(took)
            if not self.pause:
                self._save()
            return took
        end = min(self.last + self.pace.interval, float(self.pace.steps))
        rest = (end - self.now.steps) * self.pace.step
        took = min(left, rest * factor)
        done = end if took == rest * factor else self.now.steps + took / factor / self.pace.step
        self.now = Mark(done, self.now.slow + took * (1.0 - 1.0 / factor))
        self._settle(took)
        if done == end:
            self._stop()
        return took

    def _stop(self) -> None:
        """Stop for a checkpoint; the last one of the run ends when it is safe."""
        costs = self.pace.costs
        wait = self.settling if self.copied else 0.0
        self.pause = wait + costs.stall
        if self.now.steps >= self.pace.steps:
            self.pause += costs.settle
        if not self.pause:
            self._save()

    def _settle(self, seconds: float) -> None:
        """Let time pass for the checkpoint that is being written."""
        if self.copied:
            self.settling = max(0.0, self.settling - seconds)
            if not self.settling:
                self.saved, self.copied = self.copied, None

    def _save(self) -> None:
        """End a pause: the checkpoint is copied, or safe at once."""
        self.last = self.now.steps
        if self.pace.costs.settle and self.now.steps < self.pace.steps:
            self.copied, self.settling = self.now, self.pace.costs.settle
        else:
            self.saved, self.copied = self.now, None
