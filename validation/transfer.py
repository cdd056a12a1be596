"""How far off is a GPU that is priced with the constants of another chip?

Each of three chips that are calibrated is priced with the constants of each other one, and compared
with its own. Kernels are large ones of a training step, collectives those of a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from math import fsum, log, sqrt

from sim.graph import Communication, Compute
from sim.machine.cluster import Cluster, load
from sim.machine.collectives import alone, traffic
from sim.machine.kernels import compute_seconds

GPUS = ("dgx_a100", "dgx_h100", "dgx_b200")
TOKENS, HIDDEN, HEADS, DIM = 8192, 8192, 64, 128
_PAIRS = HEADS * TOKENS * TOKENS / 2  # of queries and keys, causal
_SHAPE = (1, HEADS, TOKENS, TOKENS, DIM)
_MOVED = 4.0 * TOKENS * HIDDEN
KERNELS: Mapping[str, tuple[Compute, ...]] = {
    "gemm": tuple(
        Compute("gemm", 2.0 * TOKENS * n * HIDDEN, 0.0, (1, TOKENS, n, HIDDEN))
        for n in (1024, 3584, 10240, 28672)
    ),
    "attention": (Compute("attention", 4.0 * _PAIRS * DIM, 0.0, _SHAPE),),
    "attention_backward": (Compute("attention_backward", 10.0 * _PAIRS * DIM, 0.0, _SHAPE),),
    "memory_kernels": tuple(
        Compute(kind, 0.0, _MOVED) for kind in ("norm", "elementwise", "optimizer")
    ),
}
COLLECTIVES = tuple(
    Communication(kind, size * 2.0**20, tuple(range(8)), "dp")
    for kind in ("all_reduce", "all_gather", "reduce_scatter")
    for size in (16, 256)
)


def transfer(family: str) -> float:
    """Return the root mean square of the log of times with other constants over the own ones."""
    off = [
        log(ours / theirs)
        for a, b in permutations(GPUS, 2)
        for ours, theirs in zip(_priced(family, b, a), _priced(family, b, b), strict=True)
    ]
    return sqrt(fsum(one * one for one in off) / len(off))


def _priced(family: str, name: str, like: str) -> list[float]:
    """Return the seconds of a family's works on a machine with the constants of another."""
    here, other = load(name, 8), load(like, 8)
    if family == "collectives":
        on = replace(here, collectives=other.collectives)
        return [alone(on, traffic(on, work)) for work in COLLECTIVES]
    return [_seconds(here, other, family.removesuffix("_backward"), of) for of in KERNELS[family]]


def _seconds(here: Cluster, other: Cluster, table: str, work: Compute) -> float:
    costs = {**here.gpu.costs, table: other.gpu.costs[table]}
    arithmetic, memory, fixed = compute_seconds(replace(here.gpu, costs=costs), work)
    return max(arithmetic, memory) + fixed
