"""How far off are the prices of kernels? Reads ``residuals.toml``, which calibration leaves.

Errors are standard deviations of the logarithm of a time. A family's is shared by all its kernels,
an alike's by those of one kind and shape.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from sim.graph import Communication, Compute, Work
from sim.machine.cluster import Cluster
from sim.machine.kernels import MEMORY_KINDS

PEER_TO_PEER = ("p2p", "ring_exchange")


class Residual(NamedTuple):
    """The standard deviations of a family of prices."""

    family: float
    shape: float


@cache
def residuals() -> Mapping[str, Residual]:
    """Return the errors by family.

    >>> 0.0 < residuals()["gemm"].shape < 0.2
    True
    """
    text = (files("sim.machine") / "residuals.toml").read_text(encoding="utf-8")
    return {
        name: Residual(float(of["family"]), float(of["shape"]))
        for name, of in tomllib.loads(text).items()
    }


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
            inside = len({cluster.node(rank) for rank in ranks}) == 1
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
