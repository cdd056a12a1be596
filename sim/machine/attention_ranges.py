"""What attention's kernels would take if an assumed value were another one.

Calibration puts the assumed values of ``[attention]`` into the topologies. Here the tables that
they went into are changed as calibration would, without a second fit: a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from sim.machine import topology
from sim.machine.cluster import Gpu

Shares = dict[str, dict[str, float]]
"""Shares of the peak by phase, then by head dimension."""


def _divided(shares: Shares, ratio: float) -> Shares:
    """Return shares whose backward has this ratio to the forward; both together take as long.

    A backward has 10 FLOPs where a forward has 4: both take 4 / forward + 10 / backward.
    """
    out: Shares = {"forward": {}, "backward": {}}
    for dim, forward in shares["forward"].items():
        both = 4.0 / forward + 10.0 / shares["backward"][dim]
        out["forward"][dim] = (4.0 + 10.0 / ratio) / both
        out["backward"][dim] = ratio * out["forward"][dim]
    return out


def _faster(shares: Shares, factor: float) -> Shares:
    return {
        phase: {dim: min(share * factor, 1.0) for dim, share in of.items()}
        for phase, of in shares.items()
    }


def _backward_64(shares: Shares, share: float) -> Shares:
    backward = shares["backward"]
    return {**shares, "backward": {**backward, "64": share * backward["128"]}}


class Rule(NamedTuple):
    """Where an assumed value went, and how."""

    topologies: tuple[str, ...]
    kernels: tuple[str, ...]
    shares: Callable[[Shares, float], Shares]
    relative: bool  # whether the value is a factor on what stands there


RULES: Mapping[str, Rule] = {
    "triton_backward": Rule(("dgx_a100", "dgx_h100"), ("triton",), _divided, False),
    "flash2_a100_backward": Rule(("dgx_a100",), ("flash2", "cudnn"), _divided, False),
    "triton_h100": Rule(("dgx_h100",), ("triton",), _faster, True),
    "cudnn_a100": Rule(("dgx_a100",), ("cudnn",), _faster, True),
    "cudnn_b200": Rule(("dgx_b200",), ("cudnn",), _faster, True),
    "cudnn_b200_backward_64": Rule(("dgx_b200",), ("cudnn",), _backward_64, False),
}
"""By the name of the value in ``[attention]``."""


def with_attention(gpu: Gpu, name: str, value: float, usual: float) -> Gpu:
    """Return the GPU whose tables of attention were made with another value than the ``usual``.

    It is the same GPU where its tables are not those that calibration made with this value.
    """
    rule, tables = RULES[name], gpu.costs.get("attention", {})
    changed = {
        kernel: {**tables[kernel], **rule.shares(_shares(tables[kernel]), _by(rule, value, usual))}
        for kernel in rule.kernels
        if any(tables.get(kernel) == _calibrated(of).get(kernel) for of in rule.topologies)
    }
    if not changed:
        return gpu
    return replace(gpu, costs={**gpu.costs, "attention": {**tables, **changed}})


def _by(rule: Rule, value: float, usual: float) -> float:
    return value / usual if rule.relative else value


def _shares(table: Mapping[str, Any]) -> Shares:
    return {phase: dict(table[phase]) for phase in ("forward", "backward")}


@cache
def _calibrated(name: str) -> Mapping[str, Any]:
    tables: Mapping[str, Any] = topology.read(name)["costs"]["attention"]
    return tables
