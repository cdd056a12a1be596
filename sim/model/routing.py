"""How many tokens each expert gets: its share under a load, whole tokens, and what is dropped.

All routed layers have the same load, and expert e has the e-th share. Experts are placed on ranks
in blocks, so under Zipf's law the first rank has the most to do.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

KINDS = ("balanced", "zipf", "dirichlet", "histogram")


class ExpertLoad(NamedTuple):
    """How unevenly experts are used."""

    kind: str = "balanced"
    s: float = 1.0  # zipf: exponent; 0 is balanced
    alpha: float = 1.0  # dirichlet: concentration; the larger, the more even
    counts: tuple[float, ...] = ()  # histogram: weight of each expert
    seed: int = 0  # dirichlet: seed of the one draw


BALANCED = ExpertLoad()


def shares(load: ExpertLoad, experts: int) -> tuple[float, ...]:
    """Return each expert's share of all routed copies, shape (experts,); shares sum to 1.

    Zipf: p_e ∝ (e + 1)^-s. Raises ValueError for a histogram of another number of experts.

    >>> shares(ExpertLoad("zipf", s=1.0), 2)
    (0.6666666666666666, 0.3333333333333333)
    """
    match load.kind:
        case "zipf":
            weights = np.arange(1.0, experts + 1) ** -load.s
        case "dirichlet":
            weights = np.random.default_rng(load.seed).dirichlet([load.alpha] * experts)
        case "histogram":
            if len(load.counts) != experts:
                raise ValueError(
                    f"a load of {len(load.counts)} counts needs {experts}, one per expert"
                )
            weights = np.array(load.counts)
        case _:
            weights = np.ones(experts)
    return tuple((weights / weights.sum()).tolist())


@cache
def tokens(
    load: ExpertLoad, experts: int, copies: int, capacity_factor: float | None = None
) -> tuple[int, ...]:
    """Return how many of the routed copies of tokens each expert takes, shape (experts,).

    Shares become whole numbers by largest remainder. With a capacity factor c an expert takes at
    most c times its fair share, rounded up as in Megatron-Core, and the rest is dropped.

    >>> tokens(ExpertLoad("zipf", s=1.0), 2, 100), tokens(ExpertLoad("zipf", s=1.0), 2, 100, 1.25)
    ((67, 33), (63, 33))
    """
    exact = np.array(shares(load, experts)) * copies
    whole = np.floor(exact).astype(np.int64)
    left = copies - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:left]] += 1
    if capacity_factor is not None:
        whole = np.minimum(whole, math.ceil(capacity_factor * copies / experts))
    return tuple(whole.tolist())


def dropped(load: ExpertLoad, experts: int, copies: int, capacity_factor: float | None) -> float:
    """Return the share of the routed copies that no expert takes."""
    return 1.0 - sum(tokens(load, experts, copies, capacity_factor)) / copies
