"""Steps stop while GPUs copy their state to the host; from there it is written beside steps.

So do PyTorch's ``dcp.async_save`` and Megatron-LM's ``--async-save``.
"""

from __future__ import annotations

from sim.goodput.kinds import Paths, State
from sim.goodput.pace import Costs


def costs(of: State, ways: Paths) -> Costs:
    """Return the times of the copy, of writing and of reading."""
    return Costs(of.gpu / ways.host, ways.stored(of), ways.loaded(of))
