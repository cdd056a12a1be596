"""How much slower is arithmetic beside communication? One public benchmark says.

Eight H100 multiply 8192 x 8192 matrices of fp16 while they gather 64 MiB from each: 2.02 ms with
NCCL and 1.77 ms with copy engines, which hold no SM; one after the other both take 2.96 ms
(github.com/pytorch/pytorch pull 172714, benchmarks/distributed/bench_overlapped_matmul_allgather).
The machine's GEMM, all-gather, SMs and clock are what they are; the one number that is left,
``contention``, is fitted to both overlapped times.
"""

from __future__ import annotations

from dataclasses import replace
from math import log

from scipy.optimize import brentq

from sim.engine.loop import simulate
from sim.graph import Builder, Communication, Compute, Graph
from sim.machine.cluster import Cluster
from sim.machine.collectives import traffic
from sim.machine.hardware import Machine
from sim.machine.price import LinkLoad, price
from sim.timeline import Timeline

MATMUL = Compute("gemm", 2.0 * 8192**3, 6.0 * 8192**2, (1, 8192, 8192, 8192), "fp16")
GATHER = Communication("all_gather", 8 * 64 * 2**20, tuple(range(8)), "dp", "ring")
COPIES = GATHER._replace(algorithm="copy")
OVERLAPPED = {GATHER: 2.02e-3, COPIES: 1.77e-3}  # seconds
SEQUENTIAL = 2.96e-3


def beside(cluster: Cluster, *works: Compute | Communication) -> Timeline:
    """Return one rank's works, each on a stream of its own, its peers doing the same."""
    b = Builder()
    for i, work in enumerate(works):
        op = b.add(f"work {i}", 0, f"stream {i}", work)
        if isinstance(work, Communication):
            b.join([op])
    return simulate(b.graph(), priced(b.graph(), cluster))


def priced(graph: Graph, cluster: Cluster) -> Machine:
    """Return what the works of a graph of one rank take; all groups of its peers do the same."""
    works = [work for work in graph.works if isinstance(work, Communication)]
    return price(graph, cluster, {work: _load(cluster, work) for work in works})


def _load(cluster: Cluster, work: Communication) -> LinkLoad:
    links, sizes, latency, algorithm = traffic(cluster, work)
    each = tuple(sizes.tolist())
    return LinkLoad(tuple(links.tolist()), each, max(each), latency, algorithm)


def fit(cluster: Cluster) -> float:
    """Return the contention with which both overlapped times are right in the mean."""

    def error(contention: float) -> float:
        found = (beside(contended(cluster, contention), MATMUL, work) for work in OVERLAPPED)
        pairs = zip(found, OVERLAPPED.values(), strict=True)
        return sum(log(timeline.seconds / seconds) for timeline, seconds in pairs)

    return float(brentq(error, 0.0, 1.0, xtol=1e-4))


def contended(cluster: Cluster, contention: float) -> Cluster:
    """Return the cluster with another contention."""
    costs = cluster.gpu.costs
    own = {**costs["communication"], "contention": contention}
    return replace(cluster, gpu=replace(cluster.gpu, costs={**costs, "communication": own}))
