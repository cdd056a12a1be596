"""Links in columns are those that are laid one by one, and which limit is found as one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schedules.input_error import InputError
from sim.machine import fabric, limits
from sim.machine.columns import Columns, back, columns, heights
from sim.machine.laid import Laid
from sim.machine.paths import of_ways
from sim.machine.topology import read, room

NAMES = sorted(p.stem for p in (Path(fabric.__file__).parents[2] / "topologies").glob("*.toml"))
QUICK = ("dgx_h100", "h100_pcie_4nic", "l40s_pcie")
CASES = [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in NAMES]
GPUS = (1, 2, 3, 5, 8, 9, 12, 16, 40, 100)


def specs(name: str) -> list[tuple[dict[str, Any], int]]:
    """Return a topology for each number of GPUs that it can hold."""
    out = []
    for gpus in GPUS:
        try:
            out.append((room(read(name), gpus), gpus))
        except InputError:
            continue
    return out


@pytest.mark.parametrize("name", CASES)
def test_columns_are_the_links_that_are_laid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same ends in the same order, the same facts and the same links on each way."""
    monkeypatch.setattr(fabric, "FEW", 1)
    for spec, gpus in specs(name):
        plain, quick = fabric.build(spec, gpus), fabric.wired(spec, gpus)
        if plain.between is not None or spec["fabric"]["kind"] == "dragonfly":
            continue  # of a tree alone
        assert isinstance(quick.network, Laid)
        for key, theirs in columns(plain.network)._asdict().items():
            assert np.array_equal(getattr(quick.network.columns, key), theirs), (gpus, key)
        assert np.array_equal(quick.network.back, back(quick.network.columns))
        index = {link: k for k, link in enumerate(plain.network.edges)}
        paths, ours = of_ways(plain.ways, index), quick.network.paths
        assert paths is not None
        for side in ("up", "down"):
            pairs = zip(getattr(ours, side), getattr(paths, side), strict=True)
            assert all(np.array_equal(*pair) for pair in pairs)
        for mine, other in zip(ours.nodes, paths.nodes, strict=True):
            for tier in zip(mine.T, other.T, strict=True):
                assert len({*zip(*map(np.ndarray.tolist, tier), strict=True)}) == len({*tier[1]})
        assert list(quick.network.edges) == list(plain.network.edges)
        assert dict(quick.ways) == dict(plain.ways)


def one_by_one(of: Columns) -> list[bool]:
    """Leave out links from the highest down, each for what is still in at either end."""
    names = [*zip(of.start.tolist(), of.end.tolist(), of.up.tolist(), strict=True)]

    def half(node: int, up: bool) -> tuple[int, bool]:
        return node, bool(of.nic[node]) and up

    ends = [(half(a, up), half(b, up)) for a, b, up in names]
    fed: dict[object, list[int]] = {}
    drained: dict[object, list[int]] = {}
    for k, (start, end) in enumerate(ends):
        fed.setdefault(end, []).append(k)
        drained.setdefault(start, []).append(k)
    gone, height = [False] * len(names), heights(of)
    for k in sorted(range(len(names)), key=lambda k: -height[names[k][0]] - height[names[k][1]]):
        for node, side in ((ends[k][0], fed), (ends[k][1], drained)):
            others = [j for j in side.get(node, []) if names[j][:2] != names[k][1::-1]]
            fits = sum(of.bandwidth[others].tolist()) <= of.bandwidth[k] * (1 + 1e-12)
            if fits and not of.gpu[node[0]] and not any(gone[j] for j in others):
                gone[k] = True
                break
    return [not one for one in gone]


@pytest.mark.parametrize("name", CASES)
def test_links_that_limit_are_those_found_one_by_one(name: str) -> None:
    """On every machine, of few and of many GPUs."""
    for spec, gpus in specs(name):
        of = columns(fabric.build(spec, gpus).network)
        assert limits.limiting(of).tolist() == one_by_one(of), gpus
