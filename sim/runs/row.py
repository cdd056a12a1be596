"""The figures of a run that a sweep has in a row: some of the summary's; no others are found."""

from __future__ import annotations

from dataclasses import asdict
from math import fsum
from typing import Any

from sim.analysis.breakdown import breakdown
from sim.analysis.idle import bubble, idle
from sim.analysis.steps import steady
from sim.machine.provenance import sentence
from sim.memory.curve import peaks
from sim.runs.run import Result
from sim.runs.summary import step_seconds, throughput
from sim.runs.untimed_figures import held


def row(result: Result) -> dict[str, Any]:
    """Return the figures of a sweep's columns, equal to those of ``result.summary``."""
    return with_causes(result)[0]


def with_causes(result: Result) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the same, and the seconds of a step in which no kernel runs, by cause, in the mean."""
    recipe, job, cluster, timeline = result.recipe, result.job, result.cluster, result.timeline
    found = steady(timeline, *recipe.ramps)
    step = step_seconds(recipe, found)
    rate, lost = throughput(recipe, job, cluster, step), breakdown(found.timeline)
    memory = held([asdict(peak) for peak in peaks(timeline)], recipe, job, cluster, timeline)
    gaps = bubble(idle(found.timeline))
    out = {
        "step_time_s": step,
        "tokens_per_s": rate.get("tokens_per_s"),
        "mfu": rate["mfu"],
        "idle_share_of_step": gaps.idle_share_of_step,
        "exposed_s": fsum(lost.mean(exposed) / found.steps for exposed in lost.exposed.values()),
        "peak_bytes": max(entry["peak_bytes"] for entry in memory),
        "fits": all(entry["device_bytes"] <= cluster.gpu.memory for entry in memory),
        "ops": len(timeline.graph),
        "uncalibrated": sentence(cluster.borrowed) or None,
        "refused": None,
    }
    return out, {cause: seconds / found.steps for cause, seconds in gaps.by_cause_s.items()}
