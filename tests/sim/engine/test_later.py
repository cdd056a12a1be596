"""By how much latencies of clones may add up, as a run of the step finds it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sim.engine import Stats, simulate
from sim.graph import Builder, Communication, Fixed, zeros
from sim.machine.hardware import ideal


@pytest.mark.parametrize("lag", [0.0, 2.0])
def test_only_differences_on_one_chain_add_up(lag: float) -> None:
    """Messages run between kernels, in their queue, and one beside them; lags do not count."""
    b = Builder()
    kernel = b.add("kernel", 0, "compute", Fixed(5.0))
    for seconds in (3.0, 4.0):
        work = Communication("p2p", seconds, (0, 1), "pp")
        sent = b.add("send", 0, "pp", work, waits=[kernel])
        b.join([sent])
        kernel = b.add("kernel", 0, "compute", Fixed(7.0), waits=[sent], lag=lag)
    b.join([b.add("reduce", 0, "dp", Communication("all_reduce", 6.0, (0, 2), "dp"))])
    graph, stats = b.graph(), Stats(asks_later=True)
    graph = graph if lag else replace(graph, lag=zeros(len(graph)))
    apart = [work.bytes if isinstance(work, Communication) else 0.0 for work in graph.works]
    machine = replace(ideal(graph, p2p=1.0), apart=np.array(apart))
    simulate(graph, machine, stats=stats)
    assert stats.later == 3.0 + 4.0
