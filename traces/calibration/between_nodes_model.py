"""What the time of a ring or a tree between nodes is made of, and how its constants are fitted.

A time is base + rounds inside · (inner + route) + rounds across · (fabric + route) + the slowest
link's bytes / (nominal · share), so it is linear in what is fitted once the slowest link is known.
Errors count as shares of the measured time, and no constant is below 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from sim.machine.collectives import tuning
from sim.machine.collectives.tree import busiest, depth
from traces.calibration.nccl_rows import Row

ROUTE = dict.fromkeys(("dgx_h100", "dgx_b200", "a100_4nic", "alps_gh200"), (0.3, 2.6))
ROUTE |= {"aws_p4d": (0.3, 70.6)}
"""Microseconds of a route inside and between nodes of one leaf."""
PORTS = {"dgx_h100": 400e3, "dgx_b200": 400e3, "a100_4nic": 100e3, "aws_p4d": 50e3}
PORTS |= {"alps_gh200": 100e3}
"""Bytes per microsecond of all ports of a node, nominal."""
LINK = {"dgx_h100": 450e3, "dgx_b200": 900e3}
"""The same of a GPU's NVLinks."""
Table = dict[str, float]


class Term(NamedTuple):
    """An unknown, and what multiplies it in a row's time."""

    name: str
    of: Callable[[Row], float]


def solved(some: Sequence[Row], terms: Sequence[Term], known: Callable[[Row], float]) -> Table:
    """Return the unknowns, none below 0, that bring the rows' times nearest in relative terms."""
    from scipy.optimize import nnls

    measured = np.array([row.us for row in some])
    columns = np.array([[term.of(row) for term in terms] for row in some])
    rest = 1.0 - np.array([known(row) for row in some]) / measured
    found, _ = nnls(columns / measured[:, None], rest)
    return {term.name: float(value) for term, value in zip(terms, found, strict=True)}


def rounds(row: Row) -> tuple[int, int]:
    """Return a ring's rounds inside nodes and between them."""
    passes, ranks = tuning.PASSES[row.collective], row.nodes * row.gpus
    across = min(ranks - 1, row.nodes)
    return passes * (ranks - 1 - across), passes * across


def wire(row: Row) -> float:
    """Return the microseconds of a ring's bytes on the ports of its GPUs, at nominal bandwidth."""
    ranks = row.nodes * row.gpus
    ports = PORTS[row.machine] * min(1.0, row.gpus / 8)
    return tuning.PASSES[row.collective] * (ranks - 1) / ranks * row.bytes / ports


def routes(row: Row) -> float:
    """Return the microseconds of a ring's routes."""
    inside, across = rounds(row)
    return inside * ROUTE[row.machine][0] + across * ROUTE[row.machine][1]


def rings(
    some: Sequence[Row], base: float, fabric: float, share: float = 0.0, inner: float | None = None
) -> Table:
    """Fit a ring's round inside nodes and the share of the ports, but for what is given."""
    terms = [] if inner is not None else [Term("inner", lambda row: rounds(row)[0])]
    terms += [] if share else [Term("over", wire)]

    def known(row: Row) -> float:
        inside, across = rounds(row)
        rest = wire(row) / share if share else 0.0
        return base + routes(row) + across * fabric + inside * (inner or 0.0) + rest

    found = solved(some, terms, known)
    out = {"inner": found["inner"]} if inner is None else {}
    return out | ({} if share else {"fabric_share": 1.0 / found["over"]})


def nvls_trees(some: Sequence[Row]) -> Table:
    """Fit NVLS trees: between two nodes NVLink limits, between more the ports."""
    inside, across = ROUTE["dgx_h100"]
    terms = [
        Term("base", lambda _: 1.0),
        Term("fabric", lambda row: 2 * depth(row.nodes)),
        Term("share", lambda row: nvlinks(row) * (row.nodes == 2)),
        Term("fabric_share", lambda row: ports(row) * (row.nodes > 2)),
    ]
    found = solved(some, terms, lambda row: 2 * inside + 2 * depth(row.nodes) * across)
    return found | {key: 1.0 / found[key] for key in ("share", "fabric_share")}


def trees(
    some: Sequence[Row], known: float, fabric: float | None = None, *,
    base_too: bool = False, bytes_too: bool = True,
) -> Table:  # fmt: skip
    """Fit a tree's hop between nodes and share of the ports; ``known`` is the time in nodes."""
    terms = [Term("base", lambda _: 1.0)] if base_too else []
    terms += [] if fabric is not None else [Term("fabric", lambda row: 2 * depth(row.nodes))]
    terms += [Term("fabric_share", ports)] if bytes_too else []
    across = ROUTE[some[0].machine][1] + (fabric or 0.0)
    found = solved(some, terms, lambda row: known + 2 * depth(row.nodes) * across)
    return found | ({"fabric_share": 1.0 / found["fabric_share"]} if bytes_too else {})


def nvlinks(row: Row) -> float:
    """Return the microseconds of NVLink SHARP's bytes on a GPU's NVLinks, nominal."""
    return (row.gpus + 1) / row.gpus * row.bytes / LINK[row.machine]


def ports(row: Row) -> float:
    """Return the microseconds of a tree's bytes on a node's ports, nominal."""
    return busiest(row.nodes) / 2 * row.bytes / PORTS[row.machine]
