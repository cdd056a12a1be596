"""Measures the compiled engine against SimPy's: whole simulations of one graph, in turn.

``python -m validation.engines`` prints how many times faster it is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import process_time

from schedules.one_f_one_b import one_f_one_b
from sim.builder.strategies.exchange import Policy
from sim.engine import simulate
from sim.graph import Graph
from sim.machine.hardware import Machine, ideal
from sim.perturbations import perturbed, slowed
from sim.recipe import recipe_file
from sim.recipe.recipe import Recipe
from sim.runs.run import job_of, load, prepare
from sim.runs.schedule_run import plan_graph
from sim.runs.shared import cluster_of

RECIPES = Path(__file__).parent / "recipes"
NOISE: Mapping[str, object] = {
    "model": {"preset": "llama3-8b", "sequence": 8192},
    "cluster": {"topology": "dgx_h100", "gpus": 64},
    "parallelism": {
        "tp": 4, "sp": True, "pp": 2, "dp": 8, "zero": 1, "overlap_grad_reduce": True,
    },
    "schedule": {"name": "one_f_one_b"},
    "training": {"micro_batch": 1, "global_batch": 128, "dtype": "bf16"},
    "perturbations": [{"noise": 0.02}],
}  # fmt: skip


def engines_1t(rounds: int = 5) -> float:
    """Return how many times faster a step of GPT 1T on 3,072 GPUs is simulated: 4.1 M ops."""
    return _ratio(*_prepared(load(RECIPES / "gpt_1t_3072.toml")), rounds)


def engines_noise(rounds: int = 5) -> float:
    """Return it for Llama 8B on 64 GPUs, each of which has noise of its own: 0.6 M ops."""
    return _ratio(*_prepared(recipe_file.parse(NOISE)), rounds)


def engines_offload(rounds: int = 5) -> float:
    """Return it for a step that offloads activations beside kernels: 0.4 M ops."""
    return _ratio(*_prepared(load(RECIPES / "kwai_65b_offload.toml")), rounds)


def engines_single(rounds: int = 5, ranks: int = 64, microbatches: int = 2600) -> float:
    """Return it for 1F1B with one op per step and per message end: 1 M ops, nothing to fuse."""
    plan = one_f_one_b(ranks, microbatches)
    graph = plan_graph(plan, {"F": 5.0, "I": 4.0, "W": 3.0, "p2p": 0.5}, Policy("direction"))
    return _ratio(graph, ideal(graph, 0.5), rounds)


def _prepared(recipe: Recipe) -> tuple[Graph, Machine]:
    job = job_of(recipe)
    cluster = slowed(cluster_of(recipe), recipe.perturbations)
    what = perturbed(recipe, job)
    _, graph, machine = prepare(job, cluster, kinds=what.kinds())
    return graph, what.machine(graph, machine) if what else machine


def _ratio(graph: Graph, machine: Machine, rounds: int) -> float:
    """Return the CPU time of SimPy's engine over the compiled one's."""
    simulate(graph, machine, engine="compiled")  # which loads it
    found = in_turn(graph, machine, rounds)
    return found["simpy"] / found["compiled"]


def in_turn(graph: Graph, machine: Machine, rounds: int) -> dict[str, float]:
    """Return the CPU seconds of both engines, which take turns; medians of so many rounds."""
    found: dict[str, list[float]] = {"simpy": [], "compiled": []}
    for _ in range(rounds):
        for engine, times in found.items():
            begin = process_time()
            simulate(graph, machine, engine=engine)
            times.append(process_time() - begin)
    return {engine: median(times) for engine, times in found.items()}


def main() -> None:
    """Print the ratios, or that of one case."""
    cases = sys.argv[1:] or ["engines_1t", "engines_noise", "engines_offload", "engines_single"]
    for name in cases:
        print(f"{name} {globals()[name]():.1f}")


if __name__ == "__main__":
    main()
