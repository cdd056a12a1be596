"""What goodput takes from a recipe and a topology, and from defaults where these say nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from math import inf
from typing import Any

from schedules.input_error import InputError
from sim import units
from sim.goodput.faults import Faults, Slow
from sim.goodput.kinds import Paths
from sim.recipe.goodput_sections import SlowTable
from sim.recipe.recipe import Recipe

Spec = Mapping[str, Any]


@cache
def defaults() -> Mapping[str, Mapping[str, str]]:
    """Return the value and the source of each default."""
    text = (files("sim.goodput") / "defaults.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def seconds(given: str | None, name: str) -> float:
    """Return a time of the recipe, or its default; never is inf."""
    text = given or defaults()[name]["value"]
    return inf if text == "never" else units.duration(text)


def faults(recipe: Recipe, spec: Spec) -> Faults:
    """Return the failures of a job on its cluster.

    Raises InputError where the recipe gives both those of the whole job and those of a part.
    """
    of, nodes = recipe.failures, nodes_of(recipe, spec)
    ports = nodes * spec["node"]["nic"]["count"] if nodes > 1 else 0
    many = {"gpu": recipe.cluster.gpus, "nic": ports, "node": nodes, "software": nodes}
    given = [name for name in many if getattr(of, name)]
    if of.job and given:
        raise InputError(f"failures.job and failures.{given[0]} are both given; leave one out")
    rates = {name: n / seconds(getattr(of, name), name) for name, n in many.items()}
    if of.job:
        rates = {"job": 1.0 / seconds(of.job, "job")}
    return Faults(
        rates,
        seconds(of.detection, "detection"),
        seconds(of.restart, "restart"),
        of.spares,
        seconds(of.repair, "repair"),
        _slow(of.slow, nodes) if of.slow else None,
    )


def _slow(of: SlowTable, nodes: int) -> Slow:
    """Return the spells of all nodes of a job."""
    return Slow(units.duration(of.between) / nodes, units.duration(of.lasts), of.factors)


def nodes_of(recipe: Recipe, spec: Spec) -> int:
    """Return the nodes of a job."""
    return int(-(-recipe.cluster.gpus // spec["node"]["gpus"]))


def paths(recipe: Recipe, spec: Spec) -> Paths:
    """Return the bandwidths that a checkpoint of this kind meets.

    Raises InputError for a copy to the host, if the topology does not say how fast that is.
    """
    of, storage = recipe.checkpoint, spec.get("storage", {})
    write = units.parse(of.write, "B/s") if of.write else storage.get("write", inf)
    read = storage.get("read", write) if not of.write else write
    node = storage.get("node", inf)
    if write == inf and node == inf:
        node = units.parse(defaults()["storage_node"]["value"], "B/s")
    host = spec["gpu"].get("host_bandwidth")
    if host is None and of.kind in ("asynchronous", "memory"):
        raise InputError(
            f'checkpoint.kind = "{of.kind}" copies to the host, and topology {spec["name"]!r} has '
            "no gpu.host_bandwidth; give it there"
        )
    nic = spec["node"]["nic"]
    nics = nic["count"] * nic["bandwidth"] * nic.get("efficiency", 1.0)
    return Paths(write, units.parse(of.read, "B/s") if of.read else read, node, nics, host or inf)


def assumed(recipe: Recipe, spec: Spec) -> list[str]:
    """Return the names of the defaults that count for this job, as keys of a file."""
    of, storage = recipe.failures, spec.get("storage", {})
    parts = [] if of.job else ["gpu", "nic", "node", "software"]
    names = [*parts, "detection", "restart", *(["repair"] if of.spares is not None else [])]
    out = [f"failures.{name}" for name in names if getattr(of, name) is None]
    stored = recipe.checkpoint.kind == "memory" or recipe.checkpoint.write or storage
    return out if stored else [*out, "storage.node"]
