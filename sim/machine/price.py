"""The prices of a graph's works on a cluster, and whether they can be simulated at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from schedules.input_error import InputError
from sim.graph import Communication, Compute, Copy, Fixed, Graph, Host, Work
from sim.machine.assumed import assumed
from sim.machine.attention_tables import ADVICE
from sim.machine.cluster import Cluster, Gpu
from sim.machine.collectives.base import place
from sim.machine.hardware import NOTHING, CommunicationCost, Machine, table
from sim.machine.kernels import SizeError, compute_seconds
from sim.machine.kernels import table as fitted
from sim.machine.power import limited

MOST_SECONDS = 1e12
"""The most seconds that a step's ops may take one after another; beyond it times lose precision."""

CONSTANTS = {"broadcast": "all_gather", "all_to_all": "p2p", "ring_exchange": "p2p"}
"""The collective whose fitted constants a collective uses if it has none of its own: NCCL runs the
last two as sends and receives."""


@dataclass(frozen=True)
class LinkLoad:
    """What one communication puts on links: bytes of itself and all its clones, link by link."""

    links: tuple[int, ...]
    bytes: tuple[float, ...]
    most: float  # bytes of itself, without clones, on its most loaded link
    latency: float  # the longest latency of all clones, seconds
    algorithm: str
    apart: float = 0.0  # seconds by which those latencies differ: some clones cross more switches


def price(graph: Graph, cluster: Cluster, loads: Mapping[Communication, LinkLoad]) -> Machine:
    """Return what every work of ``graph`` takes from ``cluster``, given each communication's load.

    Raises InputError, in one sentence, for work that the topology gives no price for, and for a
    step that takes longer than can be simulated.
    """
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # refused below
            machine = limited(_machine(graph, cluster, loads), cluster.gpu, graph.works)
            seconds = machine.alone
    except SizeError:
        raise
    except InputError as error:
        raise InputError(f"topology {cluster.name!r}: {error}") from None
    ops = np.bincount(graph.work, minlength=len(seconds))
    total = float(seconds[ops > 0] @ ops[ops > 0])
    if not total <= MOST_SECONDS:
        raise InputError(
            f"the step's ops take {total:.3g} s together, and at most {MOST_SECONDS:g} s can be "
            "simulated; a smaller model or batch, or faster GPUs and links, would do"
        )
    return machine


OWN_SMS = {"copy": 0, "pipeline": 16}
"""SMs of algorithms that do not hang on the GPU: copy engines take none; Transformer Engine gives a
pipelined reduce-scatter 16 (``initialize_ub`` in pytorch/module/base.py), NeMo's tables 8 to 32
(recipes/tp_overlap_configs/userbuffers.py)."""
OWN_HBM = {"copy": 2.0, "exchange": 2.0, "pipeline": 1.5}
"""Bytes of memory traffic per byte sent: one is read, and one that comes is written; a pipelined
reduce-scatter reads its own part too and writes only sums: 1 + 2 / (n - 1), here of 4 to 8 ranks.
"""

HOST_SHARE = 0.43
"""Share of the host's memory bandwidth that Adam on the CPU reaches: ZeRO-Offload's CPU-Adam
updates 10e9 parameters in 2.57 s (Ren et al. 2021, arXiv:2101.06840, Table 4) at 28 bytes each, on
the two Xeon 8168 of a DGX-2, with 12 channels of DDR4-2666 (256 GB/s)."""


def _machine(graph: Graph, cluster: Cluster, loads: Mapping[Communication, LinkLoad]) -> Machine:
    gpu = cluster.gpu

    def kernel(work: Work) -> tuple[float, float, float]:
        match work:
            case Compute():
                return compute_seconds(gpu, work)
            case Fixed(seconds=seconds):
                return (0.0, 0.0, seconds)
            case Copy(bytes=size):
                return (0.0, 0.0, size / _host(gpu))
            case Host(bytes=size):
                return (0.0, 0.0, size / _host_memory(gpu))
        raise TypeError(work)

    def communication(work: Communication) -> CommunicationCost:
        load = loads[work]
        if not load.most:
            return NOTHING
        constants = work.collective
        if constants not in cluster.collectives:
            constants = CONSTANTS.get(constants, constants)
        if constants not in cluster.collectives:
            raise InputError(f"there is no table [collectives.{constants}]; {ADVICE}")
        return _traffic(cluster, work, load)

    return table(
        graph.works, kernel, communication, cluster.capacity, gpu.sms, _contention(cluster)
    )


def _contention(cluster: Cluster) -> float:
    """Return the speed that arithmetic loses over the memory bandwidth that communication takes."""
    given = cluster.gpu.costs.get("communication", {}).get("contention")
    return assumed("communication")["contention"] if given is None else float(given)


def _host(gpu: Gpu) -> float:
    """Return the B/s between a GPU and its host."""
    if gpu.host_bandwidth is None:
        raise InputError(f"gpu.host_bandwidth is missing; copies to the host need it; {ADVICE}")
    return gpu.host_bandwidth


def _host_memory(gpu: Gpu) -> float:
    """Return the B/s that the CPU's share for one GPU moves in an update."""
    if gpu.host_memory_bandwidth is None:
        raise InputError(
            f"gpu.host_memory_bandwidth is missing; the host's updates need it; {ADVICE}"
        )
    return HOST_SHARE * gpu.host_memory_bandwidth


def _traffic(cluster: Cluster, work: Communication, load: LinkLoad) -> CommunicationCost:
    coefficients = tuple(size / load.most for size in load.bytes)
    speeds = (cluster.capacity[link] / c for link, c in zip(load.links, coefficients, strict=True))
    speed = float(min(speeds))
    constants = fitted(cluster.gpu, "communication")
    kind = CONSTANTS.get(work.collective, work.collective)
    hbm = _taken(constants.get("hbm"), OWN_HBM)
    per_byte = next(
        (hbm[name] for name in (load.algorithm, work.collective, kind) if name in hbm), 0.0
    )
    return CommunicationCost(
        latency=load.latency,
        size=load.most,
        links=load.links,
        coefficients=coefficients,
        sms=_sms(cluster, work, load.algorithm, _taken(constants.get("sms"), OWN_SMS)),
        hbm=min(1.0, per_byte * speed / cluster.gpu.memory_bandwidth),
        apart=load.apart,
    )


def _taken(stated: Mapping[str, Any] | None, own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what communication takes of a GPU; nothing at all where nothing is stated."""
    return {**own, **stated} if stated else {}


def _sms(cluster: Cluster, work: Communication, algorithm: str, sms: Mapping[str, int]) -> int:
    """Return the kernel's SMs on each rank; across nodes they match its share of the NICs."""
    nodes = place(cluster, work.ranks).nodes
    kind = CONSTANTS.get(work.collective, work.collective)
    algorithm = algorithm.removesuffix("_tree")  # an NVLS tree's channels are NVLS's
    named = (name for name in (algorithm, work.collective, kind) if name in sms)
    inside = int(sms.get(next(named, ""), 0))
    if len(nodes) == 1:
        return inside
    if work.collective in ("p2p", "ring_exchange"):
        return int(sms.get("fabric_p2p", 0))
    return min(inside, int(sms.get("fabric", 0)) * -(-len(work.ranks) // len(nodes)))
