"""The numbers of a run, as ``summary.json`` and ``--json`` hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from math import fsum
from typing import Any

from schedules import flat
from sim import strategies, units
from sim.analysis import breakdown as breakdowns
from sim.analysis import words
from sim.analysis.critical_path import critical_path
from sim.analysis.idle import bubble, idle
from sim.analysis.steps import Steady, ends, steady
from sim.analysis.traffic import bytes_sent
from sim.builder.job import Job
from sim.builder.persistent import on_host
from sim.engine.choice import chosen
from sim.html import table
from sim.machine.cluster import Cluster
from sim.machine.hardware import Machine
from sim.model.sizes import model_flops
from sim.recipe.recipe import Recipe
from sim.runs.hosted import assumes_host
from sim.runs.nearest import nearest
from sim.runs.untimed_figures import machine, memory, pipeline
from sim.timeline import Timeline
from sim.whatif.interval import interval

SCHEMA = 3
"""The version of the keys, counted up when one changes its meaning."""


class Summary(dict[str, Any]):
    """The figures by their keys; notebooks show the main ones as a table."""

    def _repr_html_(self) -> str:
        return table(f"One step: {units.seconds(self['step_time_s'])}", self.lines())

    def lines(self) -> list[tuple[str, str]]:
        """Return the main figures as text: (label, value) pairs."""
        rate = "samples" if "tokens_per_s" not in self else "tokens"
        memory = max(self["memory"], key=lambda one: one["peak_bytes"], default=None)
        exposed = {k: v["mean"] for k, v in self["time_s"]["exposed"].items() if v["mean"]}
        said = [f"{name} {units.seconds(s)}" for name, s in exposed.items()]
        idle = self["bubble"]["idle_share_of_step"]
        out = [
            ("80 % interval", words.interval(self)),
            (f"{rate} per second", f"{self[f'{rate}_per_s']:,.0f}"),
            ("model FLOPs", f"{self['tflops_per_gpu']:.1f} TFLOP/s per GPU, MFU {self['mfu']:.1%}"),
            ("without computing", f"{idle:.1%} of the step"),
            ("exposed communication, mean", ", ".join(said) or "none"),
        ]
        if memory:
            peak = f"{memory['peak_bytes'] / 2**30:.1f} GiB, rank {memory['rank']}"
            out.append(("peak memory", peak))
        return out


def summary(
    recipe: Recipe,
    job: Job,
    cluster: Cluster,
    folded: tuple[Sequence[str], float],
    timeline: Timeline,
    priced: tuple[Machine, Timeline],
    wall: float,
) -> Summary:
    """Return every figure of a run in SI units.

    FLOPs are those of the model by Megatron's formula, or those of the hardware.
    ``folded`` has the axes along which one rank stands for all, and the seconds by which that may
    make the step too long; ``priced`` the prices, and the timeline at boost clock; ``wall`` is the
    seconds that building and simulating took. If there are several steps, those of the steady state
    count, and seconds and bytes are those of one step.
    """
    axes, later = folded
    found = steady(timeline, *recipe.ramps)
    shown, steps = found.timeline, found.steps
    step = step_seconds(recipe, found)
    path = critical_path(shown)
    seed, host = recipe.simulation.seed, assumes_host(recipe)
    within = interval(path, *priced, cluster, seed, host)
    gaps = asdict(bubble(idle(shown)))
    times = breakdowns.summary(breakdowns.breakdown(shown))
    sent = _by_rank(bytes_sent(timeline.graph))
    engine = chosen(recipe.simulation.engine, len(timeline.graph))
    return Summary(
        {
            "step_time_s": step,
            "interval_s": [end / steps + between(recipe) for end in within[:2]],
            "nearest_measured": nearest(recipe, cluster.gpu),
            **throughput(recipe, job, cluster, step),
            "bubble": {**gaps, "by_cause_s": _each(gaps["by_cause_s"], steps)},
            "time_s": _each(times, steps),
            "bytes_sent": _each(sent, recipe.simulation.steps or 1),
            "memory": memory(recipe, job, cluster, timeline),
            **_host_memory(job),
            "critical_path_s": _each(path.seconds, steps),
            **_several(job, timeline, steps),
            **pipeline(recipe),
            "machine": machine(cluster),
            "simulation": {
                "ops": len(timeline.graph),
                "ranks_simulated": len(timeline.graph.ranks()),
                "folded": list(axes),
                **({"folded_later_s": later / steps} if later else {}),
                "engine": engine.name,
                "engine_because": engine.reason,
                "seed": recipe.simulation.seed,
                "version": version("traincast"),
                "schema": SCHEMA,
                "wall_s": wall,
            },
        }
    )


def step_seconds(recipe: Recipe, found: Steady) -> float:
    """Return the seconds of one step of the steady state, and what is between two."""
    return found.seconds / found.steps + between(recipe)


def between(recipe: Recipe) -> float:
    """Return the seconds between two steps."""
    return recipe.simulation.between_ms * 1e-3


def _host_memory(job: Job) -> dict[str, Any]:
    """Return what the host holds for each pipeline rank, in bytes, if it holds anything."""
    if not any(on_host(job, [s]) for s in range(job.stages)):
        return {}
    ranks = []
    for q, steps in enumerate(flat(job.plan)):
        held = dict(on_host(job, sorted({step.stage for step in steps})))
        rank = int(job.ranks[0, 0, 0, q])
        ranks.append({"rank": rank, "bytes": fsum(held.values()), "by_category": held})
    return {"host_memory": ranks}


def _several(job: Job, timeline: Timeline, steady_steps: int) -> dict[str, Any]:
    """Return the figures that only a run of several steps has."""
    end = ends(timeline)
    if len(end) == 1:
        return {}
    stale = {str(q): updates for q, updates in enumerate(job.stale)}
    return {
        "steps": {
            "ends_s": (end - timeline.span[0]).tolist(),
            "steady": steady_steps,
            **({"staleness": stale} if stale else {}),
        }
    }


def _each(figures: Any, steps: int) -> Any:
    """Divide every number in nested tables by ``steps``, and return the tables."""
    if isinstance(figures, Mapping):
        return {name: _each(value, steps) for name, value in figures.items()}
    return figures / steps


def throughput(recipe: Recipe, job: Job, cluster: Cluster, step: float) -> dict[str, float]:
    """Return samples, tokens and FLOPs per second of a step that takes ``step`` seconds."""
    batch, tp = recipe.training.global_batch, job.parallelism.tp
    gpus, sequence = recipe.cluster.gpus, job.model.sequence
    flops = model_flops(job.model, batch, sequence, tp)
    run = flops + fsum(again(job) for again in strategies.hooks("rerun"))
    peak = cluster.gpu.peak[job.training.matmul or job.training.dtype]
    return {
        "samples_per_s": batch / step,
        **({} if job.model.resnet else {"tokens_per_s": batch * sequence / step}),
        "tflops_per_gpu": flops / step / gpus / 1e12,
        "mfu": flops / step / gpus / peak,
        "hfu": run / step / gpus / peak,
    }


def _by_rank(sent: Mapping[str, Mapping[int, float]]) -> dict[str, dict[str, float]]:
    return {name: {str(r): size for r, size in rows.items()} for name, rows in sent.items()}
