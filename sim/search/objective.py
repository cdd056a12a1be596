"""What a search makes least: the time of a step, or what a step costs in money or in energy.

A step of every layout trains as many tokens, so what a step costs decides what a token costs. Money
is the price of the GPUs for the time of the step. The energy of a GPU is that of its idle power all
the time, and what its kernels draw besides, up to the board's cap. It is an estimate: the rest of
a node, and networks, draw more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import fsum
from typing import Any, NamedTuple

import numpy as np

from schedules.input_error import InputError
from sim.machine.topology import read
from sim.runs.run import Result
from sim.search.space import Space

HOUR = 3600.0


class Objective(NamedTuple):
    """The cost of a layout, of which less is better, and the least that follows from a bound."""

    name: str
    unit: str
    words: str
    cost: Callable[[Mapping[str, Any], Space], float]
    least: Callable[[float, Space], float]
    rate: Callable[[Space], float]  # raises InputError where the topology does not say it


def objective(name: str) -> Objective:
    """Return the objective of that name; raise InputError if there is none."""
    if name not in OBJECTIVES:
        raise InputError(f"no objective {name!r}; there are {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]


def _price(space: Space) -> float:
    """Return the USD of a second of all GPUs."""
    topology = space.base.cluster.topology
    table = read(topology).get("price")
    if not table:
        raise InputError(
            f"topology {topology!r} has no table [price], which tokens_per_dollar needs; "
            "name a file with base and price.gpu_hour, or choose step_time"
        )
    return float(table["gpu_hour"]) * space.gpus / HOUR


def _idle(space: Space) -> float:
    """Return the watts of all GPUs that do nothing."""
    topology = space.base.cluster.topology
    power = read(topology)["costs"].get("power")
    if not power:
        raise InputError(
            f"topology {topology!r} has no table [gpu.power], which energy needs; choose another, "
            "such as dgx_h100, or step_time"
        )
    return float(power["idle"]) * space.gpus


def joules(result: Result) -> float | None:
    """Return the energy of all GPUs in a step; None where the topology states no power."""
    power, machine = result.cluster.gpu.costs.get("power"), result.machine
    if not power or machine.tensor is None or machine.traffic is None or machine.limits is None:
        return None
    graph, step = result.timeline.graph, result.timeline.seconds
    drawn = (machine.tensor + machine.traffic)[graph.work]
    ranks = graph.ranks()
    by_rank = np.bincount(np.searchsorted(ranks, graph.rank), drawn, len(ranks)) / step
    mean = fsum(np.minimum(by_rank, machine.limits.power).tolist()) / len(ranks)
    watts = power["idle"] + (power["rated"] - power["idle"]) * mean
    return float(watts * step * result.recipe.cluster.gpus)


def _seconds(row: Mapping[str, Any], _: Space) -> float:
    return float(row["step_time_s"])


OBJECTIVES = {
    "step_time": Objective(
        "step_time", "s", "step time", _seconds, lambda bound, _: bound, lambda _: 1.0
    ),
    "tokens_per_dollar": Objective(
        "tokens_per_dollar", "USD", "price of a step",
        lambda row, space: _seconds(row, space) * _price(space),
        lambda bound, space: bound * _price(space), _price,
    ),
    "energy": Objective(
        "energy", "J", "energy of a step",
        lambda row, _: float(row["energy_j"]),
        lambda bound, space: bound * _idle(space), _idle,
    ),
}  # fmt: skip
