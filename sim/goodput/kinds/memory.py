"""Checkpoints stay in the memory of two hosts, and never wait for storage.

GPUs copy their state to their host, which sends it to another host beside steps. After a failure
the hosts that are left give the new node its part, and all GPUs copy theirs back (Gemini, Wang et
al., SOSP 2023, with two copies).
"""

from __future__ import annotations

from sim.goodput.kinds import Paths, State
from sim.goodput.pace import Costs


def costs(of: State, ways: Paths) -> Costs:
    """Return the times of the copy, of sending it on, and of the way back."""
    back = of.node_reads / ways.nics + of.gpu_reads / ways.host
    return Costs(of.gpu / ways.host, of.node / ways.nics, back)
