"""Checks that a run holds together: types, signs, and steps of all ranks."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schedules.input_error import InputError
from traces.cpu_steps.run import MOST, CpuRun, Leaf, Moved, Positive, RankStep, Seconds

_Some = Annotated[tuple[Positive, ...], Field(min_length=1)]


class _Facts(BaseModel):
    model_config = ConfigDict(strict=True)
    allreduce_us: list[Annotated[list[Seconds], Field(min_length=2, max_length=2)]] = []


class _Run(BaseModel):
    model_config = ConfigDict(strict=True)
    mode: str
    world: Annotated[int, Field(ge=1)]
    config: dict[str, Any]
    step_s: _Some
    profiled_s: _Some
    noise: tuple[Positive, ...]
    leaves: Annotated[tuple[Leaf, ...], Field(min_length=1)]
    moved: tuple[Moved, ...]
    ranks: tuple[RankStep, ...]
    facts: _Facts


def checked(run: CpuRun, path: Path) -> CpuRun:
    """Return the run. Raises InputError where one of its values cannot be true."""
    try:
        _Run.model_validate(vars(run))
    except ValidationError as found:
        error = found.errors()[0]
        at = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error["loc"])[1:]
        raise InputError(
            f"{path} is not a whole run: {at} is {_short(error['input'])}; {_lower(error['msg'])}"
        ) from None
    steps, ranks = range(len(run.profiled_s)), range(run.world)
    there = sorted((row.step, row.rank) for row in run.ranks)
    if len(there) != len(steps) * len(ranks) or there != [*product(steps, ranks)]:
        raise InputError(
            f"{path} is not a whole run: its ranks are not those of {len(steps)} profiled steps "
            f"on {run.world} ranks, each once"
        )
    if any(row.math_s + row.host_s <= 0 for row in run.ranks):
        raise InputError(f"{path} is not a whole run: a rank of it did nothing")
    if any(leaf.alone and not 0 <= leaf.alone_s <= MOST for leaf in run.leaves):
        raise InputError(f"{path} is not a whole run: it does not say what an operator took alone")
    if any(one.step not in steps or one.end_s < one.begin_s for one in run.moved):
        raise InputError(
            f"{path} is not a whole run: a collective of it ends before it begins, or is of a "
            f"step beyond the {len(steps)} that were profiled"
        )
    return run


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
