"""The tables of comparisons, differences and recordings."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum
from typing import Any

from sim import units
from sim.analysis.words import main_causes
from sim.memory.runtime import needed
from sim.report.definitions import FIGURES, MEMORY, TIMES
from sim.report.table import Cell, Table

_SHARES = {
    "span_s": ("span", "s", "From the rank's first start to its last end."),
    "empty_share": (
        "neither runs",
        "share",
        "Share of the span in which neither a kernel nor a transfer runs.",
    ),
    "compute_share": ("computing", "share", "Share of the span in which a kernel computes."),
    "communication_share": ("only transfers", "share", "Share of the span with only transfers."),
    "overlap_share": ("overlap", "share", "Share of communication that runs beside computing."),
}
_LATE = {
    "waits_s": ("waits", "s", "Seconds in which collectives wait for ranks that come later."),
    "caused_s": (
        "awaited",
        "rank-s",
        "Seconds that other ranks wait because this one comes last, summed over them.",
    ),
    "came_last": ("came last", "", "Collectives to which this rank came last."),
}


def of_ways(ways: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table with a row for each way of running a job, from its summary."""
    rows = []
    for name, summary in ways.items():
        exposed = fsum(of["mean"] for of in summary["time_s"]["exposed"].values())
        most = max(map(needed, summary["memory"]))
        idle = summary["bubble"]["idle_share_of_step"]
        why = ", ".join(main_causes(summary))
        rows.append((name, summary["step_time_s"], summary["mfu"], idle, why, exposed, most))
    exposed_note = f"Sum over dimensions, mean of ranks. {TIMES['exposed']}"
    return Table(
        "Ways",
        (
            "way", "step time", "MFU", "idle", "mostly because of", "exposed or waiting",
            "memory needed",
        ),
        rows,
        ("", "s", "share", "share", "", "s", "bytes"),
        (
            "", FIGURES["step_time_s"][2], FIGURES["mfu"][2], FIGURES["idle_share_of_step"][2],
            "The largest causes of not computing, as shares of the step.",
            exposed_note, f"For the rank that needs most. {MEMORY['device_bytes']}",
        ),
    )  # fmt: skip


def of_changes(found: Mapping[str, Any]) -> list[Table]:
    """Return tables of the waterfall of critical paths and of the ops that changed most."""
    before = float(found["before_s"]) or 1.0
    waterfall = [
        (name.replace("_", " "), s, s / before)
        for name, s in found["waterfall_s"].items()
        if abs(s) >= units.LEAST
    ]
    changed = [
        (str(row["name"]), str(row["cause"]), row["before"], row["after"], row["before_s"],
         row["after_s"], row["change_s"])
        for row in found["changed"]
    ]  # fmt: skip
    return [
        Table(
            "What makes the difference", ("cause", "seconds", "of before"), waterfall,
            ("", "s", "share"),
            ("", "How much its part of the critical path grew; the rows sum to the difference.",
             "Share of the first timeline's seconds."),
        ),
        Table(
            "Ops that changed most",
            ("op", "of", "before", "after", "seconds before", "after", "change"), changed,
            ("", "", "", "", "s", "s", "s"),
            ("", "", "Ops of this name, all ranks.", "", "", "", "Seconds, all ranks."),
        ),
    ]  # fmt: skip


def of_ranks(found: Mapping[str, Any]) -> Table:
    """Return a table of what each rank does, and how long ranks wait for each other."""
    late = {row["rank"]: row for row in found["stragglers"]["per_rank"]}
    columns = {**_SHARES, **_LATE}
    rows: list[list[Cell]] = [
        [row["rank"], *(row[key] for key in _SHARES), *(late[row["rank"]][key] for key in _LATE)]
        for row in found["per_rank"]
    ]
    return Table(
        "Ranks",
        ("rank", *(label for label, _, _ in columns.values())),
        rows,
        ("", *(unit for _, unit, _ in columns.values())),
        ("", *(note for _, _, note in columns.values())),
    )
