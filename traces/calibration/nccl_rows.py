"""Public nccl-tests of whole clusters (``nccl_tests.csv``), and what the topologies predict."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from sim.graph import Communication
from sim.machine import fabric, topology
from sim.machine.cluster import Cluster, Gpu, load
from sim.machine.collectives import alone, traffic
from sim.machine.collectives.base import Traffic
from traces.calibration import published

FOUR_PORTS = "a100_4nic"
"""DGX A100 with four of its eight ports: a machine of two sources, and no topology of its own."""


class Row(NamedTuple):
    """One measured collective: a ``use`` of "fit" or "check", and how long it took."""

    machine: str
    nodes: int
    gpus: int  # of each node
    collective: str
    algorithm: str
    bytes: int
    us: float
    use: str
    source: str


def rows() -> list[Row]:
    """Return all rows of the table."""
    numbers = {"nodes": int, "gpus": int, "bytes": int, "us": float}
    return [
        Row(**{key: numbers.get(key, str)(value) for key, value in row.items()})
        for row in published.rows("nccl_tests")
    ]


@cache
def cluster(machine: str, nodes: int) -> Cluster:
    """Return whole nodes of a topology, or of :data:`FOUR_PORTS`."""
    if machine != FOUR_PORTS:
        each = topology.read(machine)["node"]["gpus"]
        return load(machine, each * nodes)
    spec = topology.read("dgx_a100")
    spec["node"]["nic"]["count"] = 4
    wiring = fabric.build(spec, 8 * nodes)
    gpu = Gpu(**spec["gpu"], costs=spec["costs"])
    return Cluster(machine, gpu, wiring.network, 8, spec["collectives"], wiring.ways)


def predicted(row: Row) -> tuple[Traffic, float]:
    """Return what the collective puts on links, and its seconds alone."""
    of = cluster(row.machine, row.nodes)
    each = of.gpus_per_node
    ranks = tuple(each * node + i for node in range(row.nodes) for i in range(row.gpus))
    work = Communication(row.collective, float(row.bytes), ranks, "dp", row.algorithm)
    found = traffic(of, work)
    return found, alone(of, found)


def error(row: Row) -> float:
    """Return by which share the predicted time is longer than the measured one."""
    return predicted(row)[1] / (row.us * 1e-6) - 1.0


def summary(some: Sequence[Row]) -> tuple[int, float, float, float]:
    """Return the number of rows, mean |error|, mean error and largest |error|."""
    off = [error(row) for row in some]
    return len(off), sum(map(abs, off)) / len(off), sum(off) / len(off), max(map(abs, off))
