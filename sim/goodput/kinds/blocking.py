"""Steps stop until the checkpoint is in storage."""

from __future__ import annotations

from sim.goodput.kinds import Paths, State
from sim.goodput.pace import Costs


def costs(of: State, ways: Paths) -> Costs:
    """Return the times of writing and reading."""
    return Costs(ways.stored(of), 0.0, ways.loaded(of))
