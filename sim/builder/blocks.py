"""The operators of a stage in blocks, such as its layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.builder.strategies import recompute
from sim.model.operators import Operator

NOTHING = recompute.Plan(0.0)


class OperatorBlock(NamedTuple):
    """Operators in forward order that allocate and free together."""

    operators: Sequence[Operator]
    layer: int = -1
    plan: recompute.Plan = NOTHING
    category: str = ""  # category of the memory kept from its forward to its backward
    kept: float = 0.0  # bytes of that memory
    logits: tuple[float, float] = (0.0, 0.0)  # bytes of 16-bit logits, and of the fp32 copy
    copied: float = 0.0  # bytes of logits in the forward that the loss does not keep
    input_gradients: float = 0.0  # bytes of input gradients that its backward holds at once
