"""Arithmetic beside communication: by hand, and against measured kernels and collectives."""

from __future__ import annotations

from sim.engine.loop import simulate
from sim.graph import Builder, Communication, Compute
from sim.machine.cluster import Cluster, at_boost, load, undisturbed
from sim.machine.collectives import traffic
from sim.machine.price import LinkLoad, price
from sim.timeline import Timeline

MATMUL = Compute("gemm", 2.0 * 8192**3, 6.0 * 8192**2, (1, 8192, 8192, 8192), "fp16")
GATHER = Communication("all_gather", 8 * 64 * 2**20, tuple(range(8)), "dp")


def beside(cluster: Cluster, *works: Compute | Communication) -> Timeline:
    """One rank's works, each on a stream of its own; communication with all its peers."""
    b = Builder()
    for work in works:
        i = b.add(type(work).__name__, 0, type(work).__name__, work)
        if isinstance(work, Communication):
            b.join([i])
    graph, loads = b.graph(), {}
    for work in works:
        if isinstance(work, Communication):
            links, sizes, latency, algorithm = traffic(cluster, work)
            own = tuple(sizes.tolist())
            found = LinkLoad(tuple(links.tolist()), own, max(own), latency, algorithm)
            loads[work] = found
    return simulate(graph, price(graph, cluster, loads))


def test_undisturbed_kernels_take_what_they_take_alone() -> None:
    """And so does communication, which slows kernels otherwise."""
    cluster = at_boost(load("dgx_h100", 8))
    kernel, gather = (beside(cluster, work).seconds for work in (MATMUL, GATHER))
    assert beside(undisturbed(cluster), MATMUL, GATHER).end.tolist() == [kernel, gather]
    disturbed = beside(cluster, MATMUL, GATHER).end.tolist()
    assert disturbed[0] > 1.1 * kernel
    assert disturbed[1] == gather
