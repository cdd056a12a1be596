"""The numbers of a run, as ``summary.json`` and ``--json`` hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from sim.analysis import breakdown as breakdowns
from sim.analysis.critical_path import critical_path
from sim.analysis.idle import bubble, idle
from sim.analysis.memory import peaks
from sim.analysis.traffic import bytes_sent
from sim.cluster import Cluster
from sim.job import Job
from sim.model import hardware_flops, model_flops
from sim.recipe import Recipe
from sim.timeline import Timeline

SCHEMA = 1
"""Of the keys: counted up when one changes its meaning."""


def summary(
    recipe: Recipe,
    job: Job,
    cluster: Cluster,
    folded: Sequence[str],
    timeline: Timeline,
    wall: float,
) -> dict[str, Any]:
    """Every figure in SI units. FLOPs are the model's by Megatron's formula, or the hardware's.

    ``folded`` names the axes of which one rank stands for all, ``wall`` the seconds it all took.
    """
    step = timeline.seconds
    return {
        "step_time_s": step,
        **_throughput(recipe, job, cluster, step),
        "bubble": asdict(bubble(idle(timeline))),
        "time_s": breakdowns.summary(breakdowns.breakdown(timeline)),
        "bytes_sent": _by_rank(bytes_sent(timeline.graph)),
        "memory": [asdict(peak) for peak in peaks(timeline)],
        "critical_path_s": critical_path(timeline).seconds,
        "simulation": {
            "ops": len(timeline.graph),
            "ranks_simulated": len(timeline.graph.ranks()),
            "folded": list(folded),
            "engine": "simpy",
            "seed": recipe.simulation.seed,
            "version": version("traincast"),
            "schema": SCHEMA,
            "wall_s": wall,
        },
    }


def _throughput(recipe: Recipe, job: Job, cluster: Cluster, step: float) -> dict[str, float]:
    batch, s = recipe.training.global_batch, job.setting
    gpus = recipe.cluster.gpus
    flops = model_flops(job.model, batch, s.sequence, s.tp)
    run = hardware_flops(job.model, batch, s.sequence, s.recompute, s.tp)
    peak = cluster.gpu.peak[s.dtype]
    return {
        "tokens_per_s": batch * s.sequence / step,
        "tflops_per_gpu": flops / step / gpus / 1e12,
        "mfu": flops / step / gpus / peak,
        "hfu": run / step / gpus / peak,
    }


def _by_rank(sent: Mapping[str, Mapping[int, float]]) -> dict[str, dict[str, float]]:
    return {name: {str(r): size for r, size in rows.items()} for name, rows in sent.items()}
