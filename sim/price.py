"""The prices of a graph's works on a cluster."""

from __future__ import annotations

from collections.abc import Mapping

from sim.cluster import Cluster
from sim.fold import Load
from sim.graph import Communication, Compute, Copy, Fixed, Graph, Work
from sim.hardware import NOTHING, Machine, Traffic, table
from sim.kernels import compute_seconds


def price(graph: Graph, cluster: Cluster, loads: Mapping[Communication, Load]) -> Machine:
    """What every work of ``graph`` takes from ``cluster``; ``loads`` has each communication's."""
    gpu = cluster.gpu

    def kernel(work: Work) -> tuple[float, float, float]:
        match work:
            case Compute():
                return compute_seconds(gpu, work)
            case Fixed(seconds=seconds):
                return (0.0, 0.0, seconds)
            case Copy(bytes=size):
                raise ValueError(f"copies between host and device ({size:g} B) have no price yet")
        raise TypeError(work)

    def communication(work: Communication) -> Traffic:
        load = loads[work]
        return _traffic(cluster, work, load) if load.most else NOTHING

    return table(graph.works, kernel, communication, cluster.capacity, gpu.sms)


def _traffic(cluster: Cluster, work: Communication, load: Load) -> Traffic:
    coefficients = tuple(size / load.most for size in load.bytes)
    speeds = (cluster.capacity[link] / c for link, c in zip(load.links, coefficients, strict=True))
    speed = float(min(speeds))
    constants = cluster.gpu.costs.get("communication", {})
    per_byte = constants.get("hbm", {}).get(work.collective, 0.0)
    return Traffic(
        latency=load.latency,
        size=load.most,
        links=load.links,
        coefficients=coefficients,
        sms=_sms(cluster, work, load.algorithm, constants.get("sms", {})),
        hbm=min(1.0, per_byte * speed / cluster.gpu.memory_bandwidth),
    )


def _sms(cluster: Cluster, work: Communication, algorithm: str, sms: Mapping[str, int]) -> int:
    """SMs of the kernel on each rank; between nodes it has channels for its share of the NICs."""
    nodes = {cluster.node(rank) for rank in work.ranks}
    inside = int(sms.get(algorithm, sms.get(work.collective, 0)))
    if len(nodes) == 1:
        return inside
    if work.collective == "p2p":
        return int(sms.get("fabric_p2p", 0))
    return min(inside, int(sms.get("fabric", 0)) * -(-len(work.ranks) // len(nodes)))
