"""What it costs the host to issue an op, by what the op does and by how the job runs.

A *way* to run is eager (PyTorch's modules), megatron (Megatron-LM's), compiled (torch.compile of
each layer) or graphs (a CUDA graph for each layer and pass). ``host_prices.toml`` has the prices
of each, with sources; a file of ``traincast record host`` has the same tables of another host.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from schedules.input_error import InputError
from sim.files import read_text

KERNELS = (
    "gemm",
    "attention",
    "norm",
    "elementwise",
    "softmax",
    "embedding",
    "cross_entropy",
    "optimizer",
)
"""Classes of kernels."""
TRANSFERS = ("collective", "message", "copy", "gather", "reduce")
"""Classes of other ops; gather and reduce are those of FSDP's units, with its hooks and copies."""
CLASSES = (*KERNELS, *TRANSFERS)
SECTION = "host"
"""The table of a recorded file that has the prices."""


@dataclass(frozen=True)
class HostPrices:
    """Seconds of the host for one op of each class, and once for each layer and pass."""

    name: str
    forward: Mapping[str, float]
    backward: Mapping[str, float]
    layer: tuple[float, float] = (0.0, 0.0)  # on entering it, forward and backward
    graphed: bool = False  # kernels and collectives of layers are issued with the layer


def constant(seconds: float) -> HostPrices:
    """Return prices that are the same for every op."""
    same = dict.fromkeys(CLASSES, seconds)
    return HostPrices(f"{seconds * 1e6:g} us", same, same)


@cache
def ways() -> Mapping[str, HostPrices]:
    """Return the built-in ways to run, by name.

    >>> sorted(ways())
    ['compiled', 'eager', 'graphs', 'megatron']
    """
    text = (files("sim.machine") / "host_prices.toml").read_text(encoding="utf-8")
    return {name: _prices(name, table, name) for name, table in tomllib.loads(text).items()}


def prices(way: str) -> HostPrices:
    """Return the prices of a built-in way, or of a file of ``traincast record host``.

    Raises InputError for a file that has none.
    """
    return ways()[way] if way in ways() else recorded(Path(way))


def recorded(path: Path) -> HostPrices:
    """Return the prices in a file of ``traincast record host``; raises InputError for another."""
    text = read_text(path, "simulation.host = ")
    try:
        table = json.loads(text)[SECTION]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(
            f"{path.name} has no host prices; traincast record host writes a file that has"
        ) from None
    return _prices(path.name, table, path.stem)


def _prices(where: str, table: Any, name: str) -> HostPrices:
    """Return the prices of a table: seconds of a launch, and launches by class of kernel."""
    if not isinstance(table, dict):
        raise InputError(f"{where}: {SECTION} must be a table")
    launch, layer = table.get("launch"), table.get("layer", [0.0, 0.0])
    if launch is None or not _are_numbers([launch]):
        raise InputError(f"{where}: launch must be the seconds of an operator that launches one")
    if not isinstance(layer, list) or len(layer) != 2 or not _are_numbers(layer):
        raise InputError(f"{where}: layer must be two numbers of seconds, forward and backward")
    transfers = _by_class(where, table, "transfers", TRANSFERS)
    forward, backward = (
        {key: launch * n for key, n in _by_class(where, table, which, KERNELS).items()} | transfers
        for which in ("forward", "backward")
    )
    return HostPrices(name, forward, backward, (layer[0], layer[1]), table.get("graphed") is True)


def _by_class(
    where: str, table: Mapping[str, Any], key: str, names: Sequence[str]
) -> dict[str, float]:
    found = table.get(key)
    if not isinstance(found, dict) or not _are_numbers(list(found.values())):
        raise InputError(f"{where}: {key} must be a table of numbers by class of op")
    if lacking := [name for name in names if name not in found]:
        raise InputError(f"{where}: {key} lacks {lacking[0]}")
    return {name: float(found[name]) for name in names}


def _are_numbers(values: Sequence[object]) -> bool:
    return all(
        isinstance(one, int | float) and not isinstance(one, bool) and 0.0 <= one < 1e6
        for one in values
    )
