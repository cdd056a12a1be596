"""How far off are all-reduces between nodes, with trees and without?

Two clusters: 10 nodes of H100 on 400 Gb/s per GPU (xxrjun/nccl-tests-cluster 455de4f8, NCCL
2.29.2), to whose runs the constants of rings between nodes were fitted, and Alps, unseen: 2 to 512
nodes of 4 GH200 on Slingshot-11 with 200 Gb/s per GPU (boeschf/nccl-benchmark-on-alps-2025
897cff44, NCCL 2.23.4), priced with the constants of a DGX H100. No tree was fitted to either.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.graph import Communication
from sim.machine import fabric, topology
from sim.machine.cluster import Cluster, Gpu, load
from sim.machine.collectives import alone, traffic
from traces.calibration import nccl_rows
from traces.calibration.errors import FitError, fit_error

MIB = 2**20
SMALL, LARGE = 2**16, 2**30  # bytes
ALPS_SIZES = (8, 4096, 65536, MIB, 16 * MIB, 256 * MIB)
ALPS = {  # microseconds by number of nodes
    2: (18.74, 38.03, 139.9, 921.4, 437.1, 3319.8),
    4: (30.94, 74.26, 137.2, 1481.0, 2106.0, 5567.2),
    8: (42.76, 157.7, 203.7, 255.6, 2249.0, 6091.1),
    16: (55.82, 145.2, 260.3, 284.1, 1386.3, 5862.4),
    32: (65.57, 286.2, 323.0, 342.4, 1541.0, 11141.0),
    64: (128.9, 212.7, 385.8, 400.8, 1806.1, 9949.1),
    128: (187.7, 248.6, 447.3, 654.1, 2215.3, 10331.0),
    256: (114.8, 286.5, 545.2, 1566.5, 4448.7, 18873.0),
    512: (144.8, 327.4, 588.3, 681.2, 2607.5, 11368.0),
}
Rows = list[tuple[Cluster, tuple[int, ...], int, float]]
"""Cluster, group, bytes and seconds of each all-reduce."""


def check() -> tuple[FitError, ...]:
    """Return the errors of ``auto``'s choice, and of its choice if there were no trees."""
    small = [row for row in alps() if row[2] <= SMALL]
    large = [row for row in alps() if row[2] > SMALL]
    out = []
    for name, rows in (
        ("all_reduce: 10 nodes of H100, 32 MiB to 1 GiB", h100()),
        ("check, all_reduce: 2 to 512 nodes of Alps, to 64 KiB", small),
        ("check, all_reduce: 2 to 512 nodes of Alps, 1 to 256 MiB", large),
    ):
        measured = np.array([seconds for *_, seconds in rows])
        for which, trees in (("without trees", False), ("with trees", True)):
            predicted = np.array([_predict(*row[:3], trees) for row in rows])
            out.append(fit_error(f"{name}, {which}", predicted, measured))
    return tuple(out)


def h100() -> Rows:
    """Return the rows of 10 nodes, 1 to 8 GPUs of each, up to 1 GiB."""
    cluster = load("dgx_h100", 80)
    return [
        (cluster, tuple(8 * node + i for node in range(10) for i in range(row.gpus)), row.bytes,
         row.us * 1e-6)
        for row in nccl_rows.rows()
        if row[:2] == ("dgx_h100", 10) and row.collective == "all_reduce" and row.bytes <= LARGE
    ]  # fmt: skip


def alps() -> Rows:
    """Return the rows of 4 GPUs of each node."""
    spec = topology.read("dgx_h100")
    spec["node"]["gpus"] = spec["node"]["nic"]["count"] = 4
    spec["node"]["nic"]["bandwidth"] = 25e9
    out: Rows = []
    for nodes, times in ALPS.items():
        wiring = fabric.build(spec, 4 * nodes)
        gpu, tables = Gpu(**spec["gpu"]), spec["collectives"]
        constants = {key: table for key, table in tables.items() if not key.startswith("nvls")}
        cluster = Cluster("alps", gpu, wiring.network, 4, constants, wiring.ways)
        everyone = tuple(range(4 * nodes))
        out += [(cluster, everyone, s, us * 1e-6) for s, us in zip(ALPS_SIZES, times, strict=True)]
    return out


def _predict(cluster: Cluster, ranks: tuple[int, ...], size: float, trees: bool) -> float:
    if not trees:
        constants = {k: v for k, v in cluster.collectives.items() if k != "tree"}
        cluster = replace(cluster, collectives=constants)
    return alone(cluster, traffic(cluster, Communication("all_reduce", float(size), ranks, "dp")))
