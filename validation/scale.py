"""Measures speed and size: the SimPy engine against a bare SimPy replay of as many ops, in one run.

``python -m validation.scale`` prints the table of ``validation/scale.md``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np

from schedules.one_f_one_b import one_f_one_b
from sim.builder.strategies.exchange import Policy
from sim.builder.training_step import training_step
from sim.engine import Stats, simulate
from sim.graph import Graph
from sim.machine import cluster as clusters
from sim.machine.hardware import CommunicationCost, Machine, ideal, table
from sim.runs.fold import candidates
from sim.runs.run import job_of, load, prepare
from sim.runs.schedule_run import plan_graph
from sim.table import markdown
from sim.table import table as lines
from validation.timing import resident
from validation.yardstick import replay

RECIPE = Path(__file__).parent / "recipes" / "gpt_1t_3072.toml"


@dataclass(frozen=True)
class ScaleResult:
    """Figures of one graph; CPU seconds are medians over rounds, in turn with the yardstick."""

    name: str
    ops: int
    build_s: float  # the graph alone
    price_s: float  # its prices: traffics, folding, kernels
    simulate_s: float
    yardstick_s: float
    shared: int  # activities that met another on a link or a GPU
    bytes_per_op: float  # peak resident memory less that before building, per op

    @property
    def ratio(self) -> float:
        """The ops per second of the simulation over those of the yardstick."""
        return self.yardstick_s / self.simulate_s

    @property
    def whole(self) -> float:
        """The seconds of building, pricing and simulating."""
        return self.build_s + self.price_s + self.simulate_s


COLUMNS = (
    ("graph", "name"), ("ops", "ops", ","), ("build s", "build_s", ".2f"),
    ("prices s", "price_s", ".2f"), ("simulate s", "simulate_s", ".2f"),
    ("yardstick s", "yardstick_s", ".2f"), ("of yardstick", "ratio", ".0%"),
    ("ops/s", lambda of: of.ops / of.simulate_s, ",.0f"),
    ("ops/s with building", lambda of: of.ops / of.whole, ",.0f"),
    ("building", lambda of: of.build_s / of.whole, ".0%"),
    ("shared per 100 ops", lambda of: 100 * of.shared / of.ops, ".2f"),
    ("bytes/op", "bytes_per_op", ".0f"),
)  # fmt: skip


def step_1t(rounds: int = 3, **overrides: object) -> ScaleResult:
    """Measure the recipe of GPT 1T on 3,072 GPUs, with sharing, folded, kernel by kernel."""
    recipe = load(RECIPE, {key.replace("__", "."): value for key, value in overrides.items()})
    before = resident()
    job = job_of(recipe)
    cluster = clusters.load(recipe.cluster.topology, recipe.cluster.gpus)
    both = process_time()
    lanes, graph, machine = prepare(job, cluster)
    both = process_time() - both
    build = _seconds(lambda: training_step(job, lanes.simulated)) if rounds > 1 else 0.0
    name = f"{recipe.model.name}, 1F1B, sharing on"
    return _measure(name, graph, machine, build, both - build, rounds, before)


def unshared(rounds: int = 3, **overrides: object) -> ScaleResult:
    """Measure the same graph on a machine on which nothing is shared."""
    recipe = load(RECIPE, {key.replace("__", "."): value for key, value in overrides.items()})
    before = resident()
    job = job_of(recipe)
    lanes = next(candidates(job))
    begin = process_time()
    graph = training_step(job, lanes.simulated)
    build = process_time() - begin
    name = f"{recipe.model.name}, 1F1B, nothing shared"
    return _measure(name, graph, _alone(graph), build, 0.0, rounds, before)


def steps_alone(rounds: int = 3, ranks: int = 64, microbatches: int = 1024) -> ScaleResult:
    """Measure 1F1B with one op per step and per message end: nothing to fuse, nothing shared."""
    plan = one_f_one_b(ranks, microbatches)
    before, begin = resident(), process_time()
    graph = plan_graph(plan, {"F": 5.0, "I": 4.0, "W": 3.0, "p2p": 0.5}, Policy("direction"))
    build = process_time() - begin
    machine = ideal(graph, 0.5)
    return _measure("1F1B, one op per step", graph, machine, build, 0.0, rounds, before)


def _measure(
    name: str, graph: Graph, machine: Machine, build: float, prices: float, rounds: int, before: int
) -> ScaleResult:
    stats = Stats()
    ours, bare = [], []
    for k in range(rounds):
        ours.append(_seconds(lambda: simulate(graph, machine, stats=stats, engine="simpy")))
        if k == 0:
            peak = resident() - before
        bare.append(_seconds(lambda: replay(len(graph))))
    shared = (stats.flows_shared + stats.kernels_slowed) // rounds
    return ScaleResult(
        name,
        len(graph),
        build,
        prices,
        median(ours),
        median(bare),
        shared,
        peak / len(graph),
    )


def _alone(graph: Graph) -> Machine:
    """Return a machine whose kernels and communication take 0.1 ms and share nothing."""
    hop = CommunicationCost(1e-4)
    return table(graph.works, lambda _: (1e-4, 0.0, 0.0), lambda _: hop, np.empty(0), gpu_sms=1)


def _seconds(call: Callable[[], object]) -> float:
    begin = process_time()
    call()
    return process_time() - begin


def main() -> None:
    """Print the table, one process per row so that each has its own peak of memory."""
    names = ("step_1t", "unshared", "steps_alone")
    if len(sys.argv) > 1:
        print(markdown(lines([globals()[sys.argv[1]]()], *COLUMNS)).splitlines()[-1])
        return
    print(markdown(lines([], *COLUMNS)), flush=True)
    for name in names:
        subprocess.run([sys.executable, "-m", "validation.scale", name], check=True)


if __name__ == "__main__":
    main()
