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
from sim.report.table import Term
from sim.table import Column, Table, table
from sim.timeline import Timeline

Summary = Mapping[str, Any]
MOST = 200  # rows
_OF_STEP = Column("of the step", form="share", note="Share of the step.")


def of_summary(summary: Summary) -> list[Table]:
    """Return the tables of a summary.json: time, idle time, critical path, memory, bytes sent."""
    step = float(summary["step_time_s"])
    causes = {
        Term(cause_name(name), definitions.cause(name)): s
        for name, s in summary["bubble"]["by_cause_s"].items()
    }
    path = {Term(name): s for name, s in summary["critical_path_s"].items()}
    return [
        _times(summary["time_s"], step),
        _shares("Idle time by cause", "cause", causes, step),
        _shares("Critical path", "what", path, step, definitions.PATH),
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
    rows: list[tuple[Term, float, float, float]] = []
    for name, value in times.items():
        entries = {"": value} if "mean" in value else value
        for dimension, of in entries.items():
            if of["max"] >= units.LEAST:
                label = f"{name} {dimension}".strip().replace("_", " ")
                term = Term(label, definitions.TIMES.get(name, ""))
                rows.append((term, of["mean"], of["max"], of["mean"] / step))
    return table(
        rows,
        "what",
        Column("mean", form="s", note="Mean over the ranks of the job."),
        Column("most", form="s", note="The rank with most."),
        _OF_STEP,
        title="Time of a rank",
    )


def _shares(title: str, head: str, of: Mapping[Term, float], step: float, note: str = "") -> Table:
    rows = [
        (term._replace(text=term.text.replace("_", " ")), s, s / step)
        for term, s in of.items()
        if s >= units.LEAST
    ]
    return table(rows, head, Column("seconds", form="s"), _OF_STEP, title=title, note=note)


def _memory(ranks: Sequence[Mapping[str, Any]]) -> Table:
    keys = [k for k in definitions.MEMORY if any(k in row for row in ranks)]
    categories = sorted({name for row in ranks for name in row["by_category"]})
    none = dict.fromkeys(keys) | dict.fromkeys(categories, 0.0)
    forms = {"seconds": "s", "fragmentation": "share", "stands_for": ""}
    return table(
        [{**none, **row["by_category"], **row, "rank": int(row["rank"])} for row in ranks[:MOST]],
        ("rank", "rank"),
        *((_label(k), k, forms.get(k, "bytes"), None, definitions.MEMORY[k]) for k in keys),
        *((_label(name), name, "bytes", None, "Held at the peak.") for name in categories),
        title="Memory at the peak",
        note=_first(len(ranks), "ranks"),
    )


def _sent(sent: Mapping[str, Mapping[str, float]], memory: Sequence[Mapping[str, Any]]) -> Table:
    count = {str(row["rank"]): int(row.get("stands_for", 1)) for row in memory}

    def mean(row: tuple[str, Mapping[str, float]]) -> float:
        ranks = [count.get(rank, 1) for rank in row[1]]
        return fsum(map(mul, ranks, row[1].values())) / max(sum(ranks), 1)

    return table(
        sent.items(),
        "dimension",
        ("most by a rank", lambda row: max(row[1].values(), default=0.0), "bytes"),
        ("mean of ranks", mean, "bytes"),
        title="Bytes sent",
        note=definitions.SENT,
    )


def of_ops(timeline: Timeline, title: str = "Ops") -> Table:
    """Return a table of the seconds of ops by name and look, on all ranks, most first."""
    graph = timeline.graph
    found, look = looks(graph)
    key = graph.name.astype(np.int64) * max(len(found), 1) + look
    keys, of = np.unique(key, return_inverse=True)
    seconds, ranks = timeline.end - timeline.start, op_weights(graph)
    total, count = (np.bincount(of, ranks * each, len(keys)) for each in (seconds, 1.0))
    most = np.zeros(len(keys))
    np.maximum.at(most, of, seconds)
    order = np.argsort(-total, kind="stable")[:MOST]
    rows = [
        (
            graph.names[int(keys[k]) // len(found)],
            _of(found[int(keys[k]) % len(found)]),
            int(count[k]),
            float(total[k]),
            float(total[k] / count[k]),
            float(most[k]),
        )
        for k in order.tolist()
    ]
    return table(
        rows,
        "op",
        Column("of", note="Phase of a kernel or dimension of a communication."),
        Column("ops", note="On all ranks."),
        Column("seconds", form="s", note="Sum over all ranks."),
        Column("mean", form="s"),
        Column("longest", form="s"),
        title=title,
        note=_first(len(keys), "names of ops, by their seconds"),
    )


def _of(look: Mapping[str, Any]) -> str:
    """Return the phase or dimension of a look; "kernel" for kernels without a phase."""
    return "kernel" if look.get("kernel") else str(look["label"])


def _first(n: int, what: str) -> str:
    return f"The first {MOST} of {n:,} {what}." if n > MOST else ""


def _label(key: str) -> str:
    return key.removesuffix("_bytes").replace("_", " ").replace("seconds", "peak at")
