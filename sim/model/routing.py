"""How many tokens does each expert get? The share of each under a load, whole tokens, what drops.

One load holds for all routed layers, and expert e is the e-th of its shares: experts stand on
ranks in blocks, so under Zipf's law the first rank has the most to do.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

KINDS = ("balanced", "zipf", "dirichlet", "histogram")


class Load(NamedTuple):
    """How unevenly experts are used."""

    kind: str = "balanced"
    s: float = 1.0  # zipf: exponent; 0 is balanced
    alpha: float = 1.0  # dirichlet: concentration; the larger, the more even
    counts: tuple[float, ...] = ()  # histogram: weight of each expert
    seed: int = 0  # dirichlet: of the one draw


BALANCED = Load()


def shares(load: Load, experts: int) -> tuple[float, ...]:
    """The share of all routed copies that each expert is sent; they sum to 1.

    Zipf: p_e ∝ (e + 1)^-s.

    >>> shares(Load("zipf", s=1.0), 2)
    (0.6666666666666666, 0.3333333333333333)
    """
    match load.kind:
        case "zipf":
            weights = np.arange(1.0, experts + 1) ** -load.s
        case "dirichlet":
            weights = np.random.default_rng(load.seed).dirichlet([load.alpha] * experts)
        case "histogram":
            if len(load.counts) != experts:
                raise ValueError(f"a load of {len(load.counts)} counts is not one of {experts}")
            weights = np.array(load.counts)
        case _:
            weights = np.ones(experts)
    return tuple((weights / weights.sum()).tolist())


@cache
def tokens(
    load: Load, experts: int, copies: int, capacity_factor: float | None = None
) -> tuple[int, ...]:
    """Of so many routed copies of tokens, how many each expert takes.

    Shares become whole numbers by largest remainder. With a capacity factor c an expert takes c
    times its fair share at most, rounded up as Megatron-Core does, and the rest is dropped.

    >>> tokens(Load("zipf", s=1.0), 2, 100), tokens(Load("zipf", s=1.0), 2, 100, 1.25)
    ((67, 33), (63, 33))
    """
    exact = np.array(shares(load, experts)) * copies
    whole = np.floor(exact).astype(np.int64)
    left = copies - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:left]] += 1
    if capacity_factor is not None:
        whole = np.minimum(whole, math.ceil(capacity_factor * copies / experts))
    return tuple(whole.tolist())


def dropped(load: Load, experts: int, copies: int, capacity_factor: float | None) -> float:
    """The share of the routed copies that no expert takes."""
    return 1.0 - sum(tokens(load, experts, copies, capacity_factor)) / copies
