"""The numbers of a run, as ``summary.json`` and ``--json`` hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sim.analysis import breakdown as breakdowns
from sim.analysis.critical_path import critical_path
from sim.analysis.idle import bubble, idle
from sim.analysis.memory import peaks
from sim.analysis.traffic import bytes_sent
from sim.model import hardware_flops, model_flops

if TYPE_CHECKING:
    from sim.runs import Result

VERSION, SCHEMA = "0.1.0", 1


def summary(result: Result) -> dict[str, Any]:
    """Every figure in SI units. FLOPs are the model's by Megatron's formula, or the hardware's."""
    timeline, recipe = result.timeline, result.recipe
    step = timeline.seconds
    return {
        "step_time_s": step,
        **_throughput(result, step),
        "bubble": asdict(bubble(idle(timeline))),
        "time_s": breakdowns.summary(breakdowns.breakdown(timeline)),
        "bytes_sent": _by_rank(bytes_sent(timeline.graph)),
        "memory": [_peak(peak) for peak in peaks(timeline)],
        "critical_path_s": critical_path(timeline).seconds,
        "simulation": {
            "ops": len(timeline.graph),
            "ranks_simulated": len(timeline.graph.ranks()),
            "folded": list(result.lanes.axes),
            "engine": "simpy",
            "seed": recipe.simulation.seed,
            "version": VERSION,
            "schema": SCHEMA,
            "wall_s": result.wall,
        },
    }


def _throughput(result: Result, step: float) -> dict[str, float]:
    job, recipe = result.job, result.recipe
    batch, s = recipe.training.global_batch, job.setting
    gpus = recipe.cluster.gpus
    flops = model_flops(job.model, batch, s.sequence, s.tp)
    run = hardware_flops(job.model, batch, s.sequence, s.recompute, s.tp)
    peak = result.cluster.gpu.peak[s.dtype]
    return {
        "tokens_per_s": batch * s.sequence / step,
        "tflops_per_gpu": flops / step / gpus / 1e12,
        "mfu": flops / step / gpus / peak,
        "hfu": run / step / gpus / peak,
    }


def _by_rank(sent: Mapping[str, Mapping[int, float]]) -> dict[str, dict[str, float]]:
    return {name: {str(r): size for r, size in rows.items()} for name, rows in sent.items()}


def _peak(peak: Any) -> dict[str, Any]:
    return {
        "rank": peak.rank,
        "stands_for": peak.stands_for,
        "peak_bytes": peak.peak_bytes,
        "by_category": peak.by_category,
    }
