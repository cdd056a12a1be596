"""Whether the host issues a step's ops in time, and the graph with it where it does not.

A host that is never late changes nothing, so it is left out of the graph. Whether it is late
follows from sums: after a call that waited for the GPU, op i is issued when the ops up to it have
been, and starts no sooner than the kernels before it take. How much later the first is than the
second at most is what the host adds there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sim import units
from sim.builder import issue
from sim.builder.host import HOST, launched, waited
from sim.graph import Bools, Compute, Fixed, Floats, Graph, Longs, owners
from sim.machine import host_prices
from sim.machine.assumed import ranges
from sim.machine.cluster import Cluster
from sim.machine.hardware import Machine
from sim.machine.host_prices import HostPrices
from sim.machine.price import price
from sim.recipe.recipe import Recipe
from sim.runs.latencies import shortest

SHARE = 5e-4
"""The share of a step that a host may add and yet be left out."""


class Issuer(NamedTuple):
    """How the host issues a job's ops, and whether it is simulated even where it is never late."""

    prices: HostPrices
    always: bool = False
    slowest: float = 1.0  # the factor on the prices at the end of their range


class Pace(NamedTuple):
    """Mean seconds of the kernels of the rank that waits most for its host, and of issuing each."""

    prices: str  # the name of the host's prices
    kernel_s: float
    launch_s: float
    simulated: bool  # whether the step was simulated with the host


def issuer(recipe: Recipe) -> Issuer | None:
    """Return the host that a recipe simulates, if it does.

    It is also simulated where it is on time if something else stalls it.
    """
    way = recipe.simulation.host
    if isinstance(way, bool):
        launch = recipe.simulation.launch_us * 1e-6
        return Issuer(host_prices.constant(launch), always=True) if way else None
    stalled = any(table.stall and table.stream in (None, HOST) for table in recipe.perturbations)
    slowest = ranges()["host.speed"].high if assumes_host(recipe) else 1.0
    return Issuer(host_prices.prices(way), stalled, slowest)


def assumes_host(recipe: Recipe) -> bool:
    """Return whether a recipe has a built-in way to run, whose prices have a range."""
    return recipe.simulation.host in host_prices.ways()


def usual(recipe: Recipe) -> HostPrices:
    """Return the prices by which to judge a job whose recipe does not say how its host runs."""
    way = "eager" if recipe.native else "megatron"
    return host_prices.prices(way)


def with_host(graph: Graph, prices: HostPrices) -> Graph:
    """Return the graph with a host that issues its ops."""
    return launched(graph, issue.seconds(graph, prices), waited(graph))


def is_late(graph: Graph, machine: Machine, host: Issuer) -> bool:
    """Return whether the host, at its slowest, may add more than a share of 0.0005 to the step."""
    launch = host.slowest * issue.seconds(graph, host.prices)
    added = most_added(graph, machine.alone[graph.work], launch)
    return added > SHARE * shortest(graph, machine)


def most_added(graph: Graph, alone: Floats, launch: Floats) -> float:
    """Return how many seconds a host adds to a step, about at most.

    ``alone`` and ``launch`` have the seconds of each op, shape (n,): what it takes, and what the
    host takes to issue it. It is what the rank with the latest host waits for it, and once for each
    other stage of the pipeline the longest wait.
    """
    if not len(graph):
        return 0.0
    order = np.argsort(graph.rank, kind="stable")
    rank, waits = graph.rank[order], waited(graph)[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (rank[1:] != rank[:-1]) | waits[:-1]
    begins = np.flatnonzero(new)
    late = _issued(launch[order], begins) - _ready(graph, alone, order, begins)
    each = np.maximum(np.maximum.reduceat(late, begins), 0.0)
    _, of = np.unique(rank[begins], return_inverse=True)
    longest = np.zeros(of.max() + 1)
    np.maximum.at(longest, of, each)
    stage = graph.stage[order][np.flatnonzero(np.append(True, rank[1:] != rank[:-1]))]
    once = sum(float(longest[stage == one].max()) for one in np.unique(stage))
    return float(np.bincount(of, each).max()) + once - float(longest.max())


def _issued(launch: Floats, begins: Longs) -> Floats:
    """Return when each op is issued, after the last call that waited."""
    done = np.cumsum(launch)
    before = done - launch
    return done - np.repeat(before[begins], np.diff(np.append(begins, len(done))))


def _ready(graph: Graph, alone: Floats, order: Longs, begins: Longs) -> Floats:
    """Return when each op may start at the soonest, after the last call that waited.

    A kernel starts after the kernels before it; another op after those that it waits for.
    """
    computes = computing(graph)[order]
    took = np.where(computes, alone[order], 0.0)
    done = np.cumsum(took)
    before = done - took
    row = np.empty(len(order), np.int64)
    row[order] = np.arange(len(order))
    of = np.zeros(len(order))
    later, earlier = row[owners(graph.wait_start)], row[graph.wait_on]
    mine = computes[earlier] & (graph.rank[order][later] == graph.rank[order][earlier])
    np.maximum.at(of, later[mine], done[earlier[mine]])
    zero = np.repeat(before[begins], np.diff(np.append(begins, len(order))))
    soonest: Floats = np.maximum(np.where(computes, before, of) - zero, 0.0)
    return soonest


def computing(graph: Graph) -> Bools:
    """Return a flag for each op: it is a kernel on the stream that computes."""
    main = np.array([stream.startswith("compute") for stream in graph.streams], np.bool_)
    kernel = np.array([isinstance(work, Compute) for work in graph.works], np.bool_)
    flags: Bools = main[graph.stream] & kernel[graph.work]
    return flags


def pace(recipe: Recipe, graph: Graph, alone: Floats) -> Pace:
    """Return how long kernels take and how long the host needs for each; ``alone`` (n,) in seconds.

    Other ops are issued too, and count for the kernels between them.
    """
    host, simulated = issuer(recipe), HOST in graph.streams
    prices = host.prices if host else usual(recipe)
    if simulated:
        of_host = np.array([isinstance(w, Fixed) and w.kind == HOST for w in graph.works])
        launch = np.where(of_host[graph.work], alone, 0.0)
    else:
        launch = issue.seconds(graph, prices)
    kernel = computing(graph)
    rank = graph.rank_rows()
    issued, count = np.bincount(rank, launch), np.bincount(rank, kernel)
    took = np.bincount(rank, np.where(kernel, alone, 0.0))
    most = int(np.argmax(issued - took))
    each = max(float(count[most]), 1.0)
    return Pace(prices.name, float(took[most]) / each, float(issued[most]) / each, simulated)


def kernel_seconds(graph: Graph, cluster: Cluster) -> Floats:
    """Return the seconds of each op's kernel alone, shape (n,); 0 for what is no kernel."""
    works = tuple(w if isinstance(w, Compute) else Fixed(0.0) for w in graph.works)
    return price(replace(graph, works=works), cluster, {}).alone[graph.work]


def sentence(pace: Mapping[str, Any]) -> str:
    """Say that kernels are shorter than their launches; nothing where they are not.

    >>> sentence({"prices": "eager", "kernel_s": 8e-6, "launch_s": 2e-5, "simulated": True})
    'kernels take 8 us on average, and the CPU 20 us to issue each (eager): the GPU waits for it'
    """
    if pace["launch_s"] <= pace["kernel_s"]:
        return ""
    kernel, launch = (units.seconds(pace[key]) for key in ("kernel_s", "launch_s"))
    so = (
        "the GPU waits for it"
        if pace["simulated"]
        else f'the step comes out too short unless simulation.host = "{pace["prices"]}"'
    )
    by = pace["prices"]
    return f"kernels take {kernel} on average, and the CPU {launch} to issue each ({by}): {so}"
