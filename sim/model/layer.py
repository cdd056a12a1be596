"""Which kernels one layer runs on one rank, in forward order, what they move and what they keep.

For GPT with 16-bit activations and dropout the kept bytes sum to those of Korthikanti et al. 2022:
s b h (34 + 5 a s / h) on one GPU, s b h (10 + 24 / t + 5 a s / (h t)) with tensor parallelism.
"""

from __future__ import annotations

from functools import cache

from sim.model.operators import Operator, Share, finished
from sim.model.sizes import Model, parts


def layer(model: Model, share: Share, number: int = 0) -> tuple[Operator, ...]:
    """Return the operators of layer ``number`` on a rank with this share."""
    return _layer(model, share, model.like(number))


@cache
def _layer(model: Model, share: Share, number: int) -> tuple[Operator, ...]:
    operators = [op for part in parts(model, number) for op in part.operators(share)]
    return finished(operators, share)
