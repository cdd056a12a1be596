"""Constants of collectives between nodes, fitted to the public nccl-tests of ``nccl_tests.csv``.

``python -m traces.calibration.between_nodes`` prints what stands in the topologies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sim.machine.collectives import tuning
from sim.machine.collectives.base import place
from traces.calibration import network
from traces.calibration.between_nodes_model import (
    Table,
    Term,
    nvlinks,
    nvls_trees,
    ports,
    rings,
    rounds,
    routes,
    solved,
    trees,
    wire,
)
from traces.calibration.nccl_rows import Row, cluster, rows

MIB = 2**20
LL128 = {"base": 14.0, "inner": 1.6, "fabric": 1.4, "fabric_share": 0.92}
"""Microseconds of LL128 in NCCL's src/graph/tuning.cc, less the route, and its share of a port."""


def takes(row: Row) -> str:
    """Return the algorithm that NCCL takes for an all-reduce of whole nodes, by its tuner."""
    if row.algorithm != "auto":
        return row.algorithm
    of = cluster(row.machine, row.nodes)
    placement = place(of, range(of.gpus))
    ring = tuning.ring(of, "all_reduce", "simple", placement, row.bytes)
    return "ring" if ring < tuning.nvls_tree(of, placement, row.bytes) else "nvls_tree"


class Fitted(NamedTuple):
    """Constants of one protocol of a topology, for groups with so many GPUs of a node."""

    machine: str
    collective: str
    protocol: str
    gpus: int
    constants: Table


def fits() -> list[Fitted]:
    """Return everything that is fitted here."""
    return [*_rings(), *_trees(), *_others()]


def _rings() -> Iterator[Fitted]:
    """Yield rings of H100: in Simple those that NCCL runs in it, and LL128 in two pieces."""
    for name, base, fabric in (("all_gather", 21.2, 3.5), ("reduce_scatter", 15.6, 4.4)):
        large = _some("dgx_h100", name, 8, 256 * MIB - 4096)
        yield Fitted("dgx_h100", name, "simple", 8, rings(large, base, fabric))
        for gpus in (4, 8):
            some = [row for row in _some("dgx_h100", name, gpus) if row.bytes < 200 * MIB]
            fixed = LL128["base"], LL128["fabric"], LL128["fabric_share"]
            yield Fitted("dgx_h100", name, "ll128_large", gpus, rings(some, *fixed))
            first = min(some, key=lambda row: row.bytes)
            inside, across = rounds(first)
            rest = first.us - LL128["base"] - inside * LL128["inner"] - across * LL128["fabric"]
            share = {"fabric_share": wire(first) / (rest - routes(first))}
            yield Fitted("dgx_h100", name, "ll128", gpus, share)
    some = [row for row in _some("dgx_h100", "all_reduce", 8) if takes(row) == "ring"]
    yield Fitted("dgx_h100", "all_reduce", "simple", 8, rings(some, 18.1, 4.9))
    four = _some("a100_4nic", "all_reduce", 8)
    yield Fitted("dgx_a100", "all_reduce", "simple", 8, {"inner": rings(four, 35.7, 0.0)["inner"]})
    for name, base, inner, fabric in (
        ("all_reduce", 19.7, 0.43, 4.9),
        ("all_gather", 17.3, 12.6, 3.5),
    ):
        some = [row for row in _some("dgx_b200", name, 8) if row.algorithm == "ring"]
        yield Fitted("dgx_b200", name, "simple", 8, rings(some, base, fabric, inner=inner))


def _trees() -> Iterator[Fitted]:
    """Yield trees: NVLS's of H100, NCCL's over Elastic Fabric Adapter and over Slingshot."""
    some = [row for row in _some("dgx_h100", "all_reduce", 8, MIB) if takes(row) == "nvls_tree"]
    small = [row for row in some if row.bytes <= 16 * MIB]
    large = [row for row in some if row.bytes >= 32 * MIB]
    yield Fitted("dgx_h100", "nvls_tree", "simple", 8, nvls_trees(small))
    yield Fitted("dgx_h100", "nvls_tree", "simple_large", 8, nvls_trees(large))
    efa = _some("aws_p4d", "all_reduce", 8, MIB)
    known = 35.7 + 14 * 4.0
    small = [row for row in efa if row.bytes <= 16 * MIB]
    yield Fitted("aws_p4d", "tree", "simple", 8, trees(small, known))
    large = [row for row in efa if row.bytes >= 64 * MIB]
    yield Fitted("aws_p4d", "tree", "simple_large", 8, trees(large, known))
    eight, four_k, some_k, mega = (_alps(size) for size in (8, 4096, 65536, MIB))
    hop = trees(eight, 8.4, bytes_too=False)
    share = trees(four_k, 8.4, fabric=hop["fabric"])
    yield Fitted("alps_gh200", "tree", "ll", 4, hop | share)
    some = some_k + [row for row in mega if row.nodes not in (2, 4, 256)]
    yield Fitted("alps_gh200", "tree", "simple", 4, trees(some, 1.8, base_too=True))


def _others() -> Iterator[Fitted]:
    """Yield NVLink SHARP in large buffers of one node, and LL trees' bytes at 64 KiB."""
    one = [row for row in _some("dgx_h100", "all_reduce", 8, 512 * MIB, 1) if row.nodes == 1]
    found = solved(one, [Term("base", lambda _: 1.0), Term("over", nvlinks)], lambda _: 0.0)
    constants = {"base": found["base"], "share": 1.0 / found["over"]}
    yield Fitted("dgx_h100", "nvls", "simple_large", 8, constants)
    for machine, topology in (("dgx_h100", "dgx_h100"), ("aws_p4d", "dgx_a100")):
        shares = []
        for row in _some(machine, "all_reduce", 8):
            least = [one for one in _some(machine, "all_reduce", 8) if one[1:5] == row[1:5]]
            if row.bytes == 65536:
                shares.append(ports(row) / (row.us - min(one.us for one in least)))
        yield Fitted(topology, "tree", "ll", 8, {"fabric_share": float(np.mean(shares))})


def _some(machine: str, collective: str, gpus: int, least: int = 0, nodes: int = 2) -> list[Row]:
    """Return the rows to fit of a machine's collective, from so many bytes and nodes on."""
    return [
        row
        for row in rows()
        if row[0] == machine and row.collective == collective and row.gpus == gpus
        if row.use == "fit" and row.bytes >= least and row.nodes >= nodes
    ]


def _alps(size: int) -> list[Row]:
    k = network.ALPS_SIZES.index(size)
    return [
        Row("alps_gh200", nodes, 4, "all_reduce", "auto", size, times[k], "fit", "")
        for nodes, times in network.ALPS.items()
    ]


def main() -> None:
    """Print all fits, a line each: seconds in microseconds, shares as they are."""
    for machine, collective, protocol, gpus, constants in fits():
        said = ", ".join(f"{key} = {value:.4g}" for key, value in constants.items())
        print(f"{machine} {collective}.{protocol}, {gpus} GPUs of a node: {said}")


if __name__ == "__main__":
    main()
