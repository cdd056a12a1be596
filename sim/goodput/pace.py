"""What a run does over and over: some steps, then a checkpoint."""

from __future__ import annotations

from typing import NamedTuple


class Costs(NamedTuple):
    """What a kind of checkpoint costs, in seconds."""

    stall: float
    """time for which no step runs"""
    settle: float
    """time after the stall until a failure no longer loses the checkpoint"""
    read: float
    """time to read it back after a failure"""


class Pace(NamedTuple):
    """Steps and checkpoints of a run without failures; times are seconds."""

    steps: int
    """steps of the whole run, the last of which is saved too"""
    step: float
    """time of a step"""
    interval: int
    """steps from one checkpoint to the next"""
    costs: Costs

    def wait(self, work: float) -> float:
        """Return how long a checkpoint waits until that of ``work`` seconds before is safe."""
        return max(0.0, self.costs.settle - work)
