"""The tables of a page: the figures of a summary, and the seconds of each kind of op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from operator import mul
from typing import Any

import numpy as np

from sim import units
from sim.analysis.weights import op_weights
from sim.analysis.words import cause_name
from sim.report import definitions
from sim.report.looks import looks
from sim.report.table import Table
from sim.timeline import Timeline

Summary = Mapping[str, Any]
MOST = 200  # rows
_SHARE = "Share of the step."


def of_summary(summary: Summary) -> list[Table]:
    """Return the tables of a summary.json: time, idle time, critical path, memory, bytes sent."""
    step = float(summary["step_time_s"])
    causes = {name: s for name, s in summary["bubble"]["by_cause_s"].items() if s >= units.LEAST}
    return [
        _times(summary["time_s"], step),
        _shares(
            "Idle time by cause", "cause", {cause_name(name): s for name, s in causes.items()},
            step, [definitions.cause(name) for name in causes],
        ),
        _shares("Critical path", "what", summary["critical_path_s"], step, (), definitions.PATH),
        _sent(summary["bytes_sent"], summary["memory"]),
        _memory(summary["memory"]),
    ]  # fmt: skip


def figures(summary: Summary) -> list[tuple[str, float, str, str]]:
    """Return the headline figures: label, value, unit, definition."""
    found = {**summary, **summary.get("bubble", {})}
    return [
        (label, found[key], unit, meaning)
        for key, (label, unit, meaning) in definitions.FIGURES.items()
        if key in found
    ]


def _times(times: Mapping[str, Any], step: float) -> Table:
    rows: list[tuple[str, float, float, float]] = []
    notes = []
    for name, value in times.items():
        entries = {"": value} if "mean" in value else value
        for dimension, of in entries.items():
            if of["max"] < units.LEAST:
                continue
            label = f"{name} {dimension}".strip().replace("_", " ")
            rows.append((label, of["mean"], of["max"], of["mean"] / step))
            notes.append(definitions.TIMES.get(name, ""))
    return Table(
        "Time of a rank", ("what", "mean", "most", "of the step"), rows, ("", "s", "s", "share"),
        ("", "Mean over the ranks of the job.", "The rank with most.", _SHARE), notes,
    )  # fmt: skip


def _shares(
    title: str,
    head: str,
    of: Mapping[str, float],
    step: float,
    notes: Sequence[str],
    note: str = "",
) -> Table:
    rows = [(name.replace("_", " "), s, s / step) for name, s in of.items() if s >= units.LEAST]
    heads = (head, "seconds", "of the step")
    return Table(title, heads, rows, ("", "s", "share"), ("", "", _SHARE), notes, note)


def _memory(ranks: Sequence[Mapping[str, Any]]) -> Table:
    heads = [k for k in definitions.MEMORY if any(k in row for row in ranks)]
    categories = sorted({name for row in ranks for name in row["by_category"]})
    units = {"seconds": "s", "fragmentation": "share", "stands_for": ""}
    rows = [
        [str(row["rank"]), *(row.get(k) for k in heads),
         *(row["by_category"].get(name, 0.0) for name in categories)]
        for row in ranks[:MOST]
    ]  # fmt: skip
    return Table(
        "Memory at the peak",
        ["rank", *(_label(k) for k in heads), *(_label(name) for name in categories)],
        [[int(row[0]), *row[1:]] for row in rows],
        ["", *(units.get(k, "bytes") for k in heads), *["bytes"] * len(categories)],
        ["", *(definitions.MEMORY[k] for k in heads)] + ["Held at the peak."] * len(categories),
        note=_first(len(ranks), "ranks"),
    )


def _sent(sent: Mapping[str, Mapping[str, float]], memory: Sequence[Mapping[str, Any]]) -> Table:
    count = {str(row["rank"]): int(row.get("stands_for", 1)) for row in memory}

    def mean(of: Mapping[str, float]) -> float:
        ranks = [count.get(rank, 1) for rank in of]
        return fsum(map(mul, ranks, of.values())) / max(sum(ranks), 1)

    rows = [(name, max(of.values(), default=0.0), mean(of)) for name, of in sent.items()]
    heads = ("dimension", "most by a rank", "mean of ranks")
    return Table(
        "Bytes sent", heads, rows, ("", "bytes", "bytes"), ("", "", ""), note=definitions.SENT
    )


def of_ops(timeline: Timeline, title: str = "Ops") -> Table:
    """Return a table of the seconds of ops by name and look, on all ranks, most first."""
    graph = timeline.graph
    table, look = looks(graph)
    key = graph.name.astype(np.int64) * max(len(table), 1) + look
    keys, of = np.unique(key, return_inverse=True)
    seconds, ranks = timeline.end - timeline.start, op_weights(graph)
    total, count = (np.bincount(of, ranks * each, len(keys)) for each in (seconds, 1.0))
    most = np.zeros(len(keys))
    np.maximum.at(most, of, seconds)
    order = np.argsort(-total, kind="stable")[:MOST]
    rows = [
        (
            graph.names[int(keys[k]) // len(table)],
            _of(table[int(keys[k]) % len(table)]),
            int(count[k]),
            float(total[k]),
            float(total[k] / count[k]),
            float(most[k]),
        )
        for k in order.tolist()
    ]
    return Table(
        title, ("op", "of", "ops", "seconds", "mean", "longest"), rows, ("", "", "", "s", "s", "s"),
        ("", "Phase of a kernel or dimension of a communication.", "On all ranks.",
         "Sum over all ranks.", "", ""),
        note=_first(len(keys), "names of ops, by their seconds"),
    )  # fmt: skip


def _of(look: Mapping[str, Any]) -> str:
    """Return the phase or dimension of a look; "kernel" for kernels without a phase."""
    return "kernel" if look.get("kernel") else str(look["label"])


def _first(n: int, what: str) -> str:
    return f"The first {MOST} of {n:,} {what}." if n > MOST else ""


def _label(key: str) -> str:
    return key.removesuffix("_bytes").replace("_", " ").replace("seconds", "peak at")
