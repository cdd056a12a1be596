"""How far off are the prices of kernels? Reads ``residuals.toml``, which calibration leaves.

Errors are standard deviations of the logarithm of a time. A family's is shared by all its kernels,
an alike's by those of one kind and shape.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from math import hypot
from typing import NamedTuple

from sim.graph import Communication, Compute, Work
from sim.machine import topology
from sim.machine.cluster import Cluster
from sim.machine.collectives.base import place
from sim.machine.kernels import MEMORY_KINDS

PEER_TO_PEER = ("p2p", "ring_exchange")


class Residual(NamedTuple):
    """The standard deviations of a family of prices."""

    family: float
    shape: float
    borrowed: float = 0.0  # of the family besides, with the constants of another chip

    def of_family(self, borrowed: bool) -> float:
        """Return the standard deviation that all kernels of the family share."""
        return hypot(self.family, self.borrowed) if borrowed else self.family


@cache
def residuals() -> Mapping[str, Residual]:
    """Return the errors by family.

    >>> 0.0 < residuals()["gemm"].shape < 0.2
    True
    """
    text = (files("sim.machine") / "residuals.toml").read_text(encoding="utf-8")
    return {
        name: Residual(*(float(of.get(key, 0.0)) for key in Residual._fields))
        for name, of in tomllib.loads(text).items()
    }


def borrowed(cluster: Cluster) -> set[str]:
    """Return the families that have constants of another chip: one with another peak in bf16.

    >>> from sim.machine.cluster import load
    >>> sorted(borrowed(load("rtx4090", 2)))[:3]
    ['attention', 'attention_backward', 'collectives']
    """
    peak = cluster.gpu.peak["bf16"]
    others = {of for of, name in cluster.borrowed.items() if _peak(name) != peak}
    tables = {name: name.removesuffix("_fp8").removesuffix("_backward") for name in residuals()}
    tables["p2p"] = "collectives"
    return {name for name, table in tables.items() if table in others}


@cache
def _peak(name: str) -> float:
    return float(topology.read(name)["gpu"]["peak"]["bf16"])


def family(work: Work, cluster: Cluster) -> str:
    """Return the family of a work, "" for one whose price has no measured error.

    >>> family(Compute("norm", 0.0, 8.0), None)
    'memory_kernels'
    """
    match work:
        case Compute(kind=kind) if kind in MEMORY_KINDS:
            return "memory_kernels"
        case Compute(kind=kind, dtype=dtype):
            fp8 = "_fp8" if dtype == "fp8" else ""
            return kind if kind.startswith("attention") else f"gemm{fp8}"
        case Communication(collective=collective, ranks=ranks):
            inside = len(place(cluster, ranks).nodes) == 1
            p2p = "p2p" if collective in PEER_TO_PEER else "collectives"
            return p2p if inside else f"{p2p}_between_nodes"
    return ""


def alike(work: Work) -> tuple[object, ...]:
    """Return what works have in common whose prices are off alike: kind and size, not ranks.

    >>> alike(Communication("p2p", 8.0, (0, 1), "pp")) == alike(
    ...     Communication("p2p", 8.0, (2, 3), "pp")
    ... )
    True
    """
    match work:
        case Compute(kind=kind, bytes=size, by=by) if kind in MEMORY_KINDS:
            return kind, size, by
        case Compute(kind=kind, shape=shape, dtype=dtype, by=by):
            return kind, shape, dtype, by
        case Communication(collective=collective, bytes=size, ranks=ranks):
            return collective, size, len(ranks)
    return (work,)
