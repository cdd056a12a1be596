"""Activation recomputation: what a layer keeps, and what runs again in its backward.

Full keeps a layer's input and runs its whole forward again; selective (Korthikanti et al. 2022,
section 5) drops and rebuilds only what grows with the square of the sequence, the attention core.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sim.operators import Operator

Operators = Sequence[Operator]


class Backward(NamedTuple):
    """One operator's backward, and the operators whose forward runs again just before it."""

    operator: Operator
    again: Operators = ()
    done: bool = False  # after it nothing needs what was rebuilt


def kept(operators: Operators, recompute: str) -> float:
    """Bytes that one layer keeps from its forward until its backward.

    ``operators`` are the layer's. The first is a norm: what it keeps is the layer's input.
    """
    if recompute == "full":
        return operators[0].saved
    return sum(op.saved for op in operators if not (recompute == "selective" and op.core))


def rebuilt(operators: Operators, recompute: str) -> float:
    """Bytes that recomputation brings back for one layer while its backward runs."""
    return kept(operators, "none") - kept(operators, recompute)


def backward(operators: Operators, recompute: str) -> Iterator[Backward]:
    """A layer's operators in backward order, with what runs again before which."""
    again = _again(operators, recompute)
    for op in reversed(operators):
        last = bool(again) and op is again[-1]
        yield Backward(op, again if last else (), bool(again) and op is again[0])


def _again(operators: Operators, recompute: str) -> Operators:
    match recompute:
        case "full":
            return operators
        case "selective":
            return [op for op in operators if op.core]
    return ()
