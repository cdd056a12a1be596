"""What steps of a parallel training on CPU processes over gloo consisted of.

``config`` has ``blocks``, ``d``, ``heads``, ``ffn``, ``seq``, ``mb``, ``vocab`` (0: blocks alone),
``activation``, ``optimizer``, ``bucket_bytes`` (0 where there are no buckets), as far as the source
has them; what a file does not have is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import Field

MOST = 1e15  # seconds, or bytes; squares and sums of such numbers are finite
Finite = Annotated[float, Field(ge=-MOST, le=MOST)]
Seconds = Annotated[float, Field(ge=0, le=MOST)]
Bytes = Seconds  # which are not negative either
Positive = Annotated[float, Field(gt=0, le=MOST)]
Number = Annotated[int, Field(ge=0)]


class Leaf(NamedTuple):
    """Operators of one name on tensors of the same shapes, on all ranks."""

    name: str  # aten::mm
    shapes: tuple[tuple[int, ...], ...]  # of its tensor inputs, lists of tensors flattened
    inside: (
        str  # optimizer (Optimizer.step, zero_grad), forward (before backward began), or backward
    )
    count: Positive  # type: ignore[assignment]  # per rank and step; hides the method of tuples
    mean_s: Seconds  # own seconds (children taken off), mean
    alone_s: float  # median of those beside no collective of any rank, or nan
    alone: Number  # how many those are


class Moved(NamedTuple):
    """One collective of one step; instants are seconds from the step's begin."""

    step: Number
    number: Number  # in issue order of its rank's group
    collective: str  # all_reduce, all_gather, reduce_scatter, ...; barriers are left out
    bytes: Bytes  # of the whole buffer, as in sim.graph.Communication
    begin_s: Finite  # when the last rank began
    end_s: Finite  # when the last rank's ended
    first_s: Finite  # when the first rank began; below 0 if it left the barrier before others
    computing_s: Seconds  # time in [begin, end] in which main threads ran leaves, mean of ranks


class RankStep(NamedTuple):
    """One rank in one profiled step: math, host and wait add up to its seconds."""

    step: Number
    rank: Number
    seconds: Positive
    math_s: Seconds  # in leaf operators, that compute or copy
    host_s: Seconds  # everything else of the main thread while it does not wait
    wait_s: Seconds  # it waits for a collective
    moving_s: Seconds  # union of its collectives
    exposed_s: Seconds  # the part of moving_s in which the main thread waits
    beside_math_s: Seconds  # the part of moving_s in which the main thread is in math


@dataclass(frozen=True)
class CpuRun:
    """Timed and profiled steps of one parallel training, and what they consisted of."""

    name: str
    mode: str
    world: int
    config: Mapping[str, Any]
    step_s: tuple[float, ...]  # timed, not profiled: last rank's end less last rank's begin
    profiled_s: tuple[float, ...]
    leaves: tuple[Leaf, ...]
    moved: tuple[Moved, ...]
    ranks: tuple[RankStep, ...]
    digest: str  # sha256 of what the file says, or of the files one after another
    facts: Mapping[str, Any]  # command, machine, versions, seed
    noise: tuple[float, ...] = ()
    """Own seconds over the median of operators alike, for operators beside no collective: means of
    equal shares of their time, ascending."""
