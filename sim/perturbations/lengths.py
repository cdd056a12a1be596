"""Factors on the time of kernels: by chance, or by the length of their microbatch."""

from __future__ import annotations

import math

import numpy as np

from sim.graph import PHASES, Bools, Floats, Graph, Longs
from sim.machine.hardware import Machine
from sim.machine.spread import tensor_works

Flags = Bools

PASSES = [PHASES.index(name) for name in "FRIWB"]
UNFUSED = (
    *("scores", "scores_query_grad", "scores_key_grad", "softmax", "softmax_backward"),
    *("attention_dropout", "attention_dropout_backward"),
    *("context", "context_weight_grad", "context_value_grad"),
)
"""The kernels of unfused attention, whose work grows with the square of the length."""
ASIDE = ("param_copy",)
"""Kernels that run in the passes but have nothing to do with tokens."""


def drawn(
    random: np.random.Generator, spread: float | tuple[float, ...] | None, count: int
) -> Floats:
    """Draw ``count`` factors: log-normal ones of mean 1 and sigma ``spread``, or any of a list."""
    if isinstance(spread, tuple):
        return random.choice(np.array(spread), count)
    sigma = spread or 0.0
    return np.exp(sigma * random.standard_normal(count) - sigma**2 / 2)


def skewness(spread: float | tuple[float, ...] | None) -> float:
    """Return the skewness of the factors of :func:`drawn`.

    >>> [round(skewness(of), 3) for of in (0.3, (1.0, 2.0, 3.0), (1.0, 1.0, 1.3))]
    [0.95, 0.0, 0.707]
    """
    if not isinstance(spread, tuple):
        square = math.expm1((spread or 0.0) ** 2)
        return (square + 3) * math.sqrt(square)
    mean = math.fsum(spread) / len(spread)
    two, three = (math.fsum((x - mean) ** k for x in spread) / len(spread) for k in (2, 3))
    return three / two**1.5 if two else 0.0


def of_tokens(graph: Graph) -> Flags:
    """Return a flag per op: its work, if it is a kernel, grows with the microbatch's tokens."""
    aside = np.array([name.startswith(ASIDE) for name in graph.names])
    passes = np.isin(graph.phase, PASSES) & (graph.microbatch >= 0)
    out: Flags = passes & ~aside[graph.name]
    return out


def longer(graph: Graph, machine: Machine, ops: Longs, length: Floats) -> Floats:
    """Return the factor on the seconds of each of these kernels.

    ``length`` has, for each kernel, the length of its microbatch over the usual one. Attention over
    all pairs of tokens grows with its square, other kernels with the length itself. The fixed
    seconds that a kernel takes however small it is stay.
    """
    seconds = machine.alone[graph.work[ops]]
    fixed = machine.fixed[graph.work[ops]]
    times = np.where(_square(graph)[ops], length**2, length)
    whole = (seconds - fixed) * times + fixed
    return np.divide(whole, seconds, out=np.ones(len(ops)), where=seconds > 0)


def slower(graph: Graph, machine: Machine, ops: Flags, times: Floats) -> Floats:
    """Return the factor on the seconds of each op, if tensor work takes so many ``times`` as long.

    That is for those of ``ops`` that do such work; their traffic and fixed seconds stay.
    """
    row = np.flatnonzero(ops & tensor_works(graph.works)[graph.work])
    work, out = graph.work[row], np.ones(len(graph))
    arithmetic, memory, fixed = (
        column[work] for column in (machine.arithmetic, machine.memory, machine.fixed)
    )
    whole = np.maximum(arithmetic * times[row], memory) + fixed
    out[row] = whole / (np.maximum(arithmetic, memory) + fixed)
    return out


def _square(graph: Graph) -> Flags:
    kinds = np.array([getattr(work, "kind", "").startswith("attention") for work in graph.works])
    names = np.array([name in UNFUSED for name in graph.names])
    out: Flags = kinds[graph.work] | names[graph.name]
    return out
