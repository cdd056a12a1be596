"""The figures of a run in words: what each is called, and durations that people can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim import units
from sim.analysis.words import cause_name, interval
from sim.units import seconds

Figures = Mapping[str, Any]


MESSAGES = {
    "direction": "a stream per direction of a pair of ranks",
    "pair": "a stream per pair of ranks",
    "batched": "batched",
}
"""What each p2p says of the messages of a pipeline."""


def summary_rows(summary: Figures) -> list[tuple[str, str]]:
    """Return the figures that concern the whole step, named and with units."""
    bubble, time = summary["bubble"], summary["time_s"]
    pipeline = [summary["pipeline"]] if "pipeline" in summary else []
    return [
        ("step time", seconds(summary["step_time_s"])),
        ("80 % interval", interval(summary)),
        *_steps(summary.get("steps", {})),
        *_rates(summary),
        ("TFLOP/s per GPU (model)", f"{summary['tflops_per_gpu']:.1f}"),
        ("MFU", f"{summary['mfu']:.1%}"),
        ("HFU", f"{summary['hfu']:.1%}"),
        ("idle (not computing), share of step", f"{bubble['idle_share_of_step']:.1%}"),
        ("idle over computing", f"{bubble['idle_over_ideal']:.1%}"),
        _spread("computing", time["compute"]),
        _spread("neither kernel nor transfer runs", time["empty"]),
        *[("messages", MESSAGES[of["p2p"]]) for of in pipeline],
        ("simulated", f"{summary['simulation']['ops']:,} ops"),
        *_ranks(summary["memory"]),
    ]


def _rates(summary: Figures) -> list[tuple[str, str]]:
    """Return samples per second, and tokens per second where samples have tokens."""
    keys = {"samples/s": "samples_per_s", "tokens/s": "tokens_per_s"}
    return [
        (name, f"{summary[key]:,.4g}" if summary[key] < 10 else f"{summary[key]:,.0f}")
        for name, key in keys.items()
        if key in summary
    ]


def cause_rows(summary: Figures) -> list[tuple[str, str, str]]:
    """Return why ranks do not compute: mean seconds and share of the step, the largest first."""
    step = summary["step_time_s"]
    causes = sorted(summary["bubble"]["by_cause_s"].items(), key=lambda item: -item[1])
    return [
        (cause_name(cause), seconds(mean), f"{mean / step:.1%}" if mean >= step / 1e3 else "< 0.1%")
        for cause, mean in causes
        if mean >= units.LEAST
    ]


def same(figure: Figures) -> bool:
    """Return whether mean and maximum read the same."""
    return seconds(figure["mean"]) == seconds(figure["max"])


def _steps(steps: Figures) -> list[tuple[str, str]]:
    """Return how many steps ran, how many of them the figures cover, and how old weights are.

    >>> _steps({"ends_s": [2.0, 3.0, 4.0], "steady": 2, "staleness": {"0": 1, "1": 0}})
    [('steps', '3; the figures cover 2 of them'), ('weights, updates old', 'rank 0: 1, rank 1: 0')]
    """
    if not steps:
        return []
    rows = [("steps", f"{len(steps['ends_s'])}; the figures cover {steps['steady']} of them")]
    if stale := steps.get("staleness"):
        rows.append(("weights, updates old", _stale(stale)))
    return rows


def _stale(stale: Figures) -> str:
    """Return the staleness of each pipeline rank, or of the first and last where there are many.

    >>> _stale({str(q): 9 - q for q in range(10)})
    'rank 0: 9, ..., rank 9: 0'
    """
    said = [f"rank {q}: {updates}" for q, updates in stale.items()]
    if len({*stale.values()}) == 1:
        return f"{next(iter(stale.values()))}"
    return ", ".join(said if len(said) <= 4 else [said[0], "...", said[-1]])


def _spread(name: str, figure: Figures) -> tuple[str, str]:
    mean, most = seconds(figure["mean"]), seconds(figure["max"])
    return (name, mean) if mean == most else (f"{name}, mean (max)", f"{mean} ({most})")


def _ranks(memory: Sequence[Figures]) -> list[tuple[str, str]]:
    """Return how many ranks were simulated, for how many each stands, and which these are."""
    each = sorted({int(entry.get("stands_for", 1)) for entry in memory})
    count = f"{len(memory):,} rank" + "s" * (len(memory) != 1)
    if not each or each == [1]:
        return [("", count)]
    stands = "stands for" if len(memory) == 1 else "each stands for"
    many = " to ".join(f"{size:,}" for size in dict.fromkeys((each[0], each[-1])))
    which = [str(entry["rank"]) for entry in memory]
    some = which if len(which) <= 8 else [*which[:4], "...", *which[-2:]]
    shown = f"rank{'s' * (len(which) > 1)} {', '.join(some)}"
    return [("", f"{count}, {stands} {many}"), ("", shown)]
