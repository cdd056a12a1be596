"""The tables of comparisons, differences and recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any

from sim import units
from sim.analysis.words import cause_name, main_causes
from sim.memory.runtime import needed
from sim.report.definitions import FIGURES, MEMORY, TIMES
from sim.table import Column, Table, table

_RANKS = (
    ("rank", "rank"),
    ("span", "span_s", "s", None, "From the rank's first start to its last end."),
    (
        "neither runs", "empty_share", "share", None,
        "Share of the span in which neither a kernel nor a transfer runs.",
    ),
    ("computing", "compute_share", "share", None, "Share of the span in which a kernel computes."),
    ("only transfers", "communication_share", "share", None,
     "Share of the span with only transfers."),
    ("overlap", "overlap_share", "share", None,
     "Share of communication that runs beside computing."),
    ("waits", "waits_s", "s", None,
     "Seconds in which collectives wait for ranks that come later."),
    ("awaited", "caused_s", "rank-s", None,
     "Seconds that other ranks wait because this one comes last, summed over them."),
    ("came last", "came_last", "", None, "Collectives to which this rank came last."),
)  # fmt: skip


def of_ways(ways: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table with a row for each way of running a job, from its summary."""
    return table(
        [{"way": name, **summary} for name, summary in ways.items()],
        ("way", "way"),
        ("step time", "step_time_s", "s", None, FIGURES["step_time_s"][2]),
        ("MFU", "mfu", "share", None, FIGURES["mfu"][2]),
        ("idle", "bubble/idle_share_of_step", "share", None, FIGURES["idle_share_of_step"][2]),
        ("mostly because of", lambda summary: ", ".join(main_causes(summary)), "", None,
         "The largest causes of not computing, as shares of the step."),
        ("exposed or waiting", exposed, "s", None,
         f"Sum over dimensions, mean of ranks. {TIMES['exposed']}"),
        ("memory needed", lambda summary: max(map(needed, summary["memory"])), "bytes", None,
         f"For the rank that needs most. {MEMORY['device_bytes']}"),
        title="Ways",
    )  # fmt: skip


def of_layouts(layouts: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """Return a table of a search's simulated layouts, from their names and rows."""
    bound = "No simulated step of this layout is shorter."
    return table(
        [{"layout": name, **row} for name, row in layouts],
        ("layout", "layout"),
        ("step time", "step_time_s", "s", None, FIGURES["step_time_s"][2]),
        ("MFU", "mfu", "share", None, FIGURES["mfu"][2]),
        ("idle", "idle_share_of_step", "share", None, FIGURES["idle_share_of_step"][2]),
        ("mostly because of", lambda row: cause_name(row["main_cause"] or ""), "", None,
         "The largest cause of not computing."),
        ("exposed", "exposed_s", "s", None, TIMES["exposed"]),
        ("peak memory", "peak_bytes", "bytes", None, MEMORY["peak_bytes"]),
        ("lower bound", "bound_s", "s", None, bound),
        title="Layouts that were simulated",
    )  # fmt: skip


def of_winner(names: tuple[str, str], parts: Mapping[str, tuple[float, float]]) -> Table:
    """Return a table of what one step's seconds go to in a way and in a faster one."""
    return table(
        [(name.replace("_", " "), *both, both[1] - both[0]) for name, both in parts.items()],
        "seconds go to",
        *(Column(name, form="s") for name in names),
        Column("change", form="s", note="The rows sum to the difference of the steps."),
        title="Why the fastest wins",
        note="On each way's busiest rank: computing is the mean of ranks, and imbalance what this "
        "rank computes more; the rest is why it does not compute.",
    )


def exposed(summary: Mapping[str, Any]) -> float:
    """Return the seconds of exposed communication: mean over ranks, sum over dimensions."""
    return fsum(of["mean"] for of in summary["time_s"]["exposed"].values())


def of_changes(found: Mapping[str, Any]) -> list[Table]:
    """Return tables of the waterfall of critical paths and of the ops that changed most."""
    before = float(found["before_s"]) or 1.0
    waterfall = [
        (name.replace("_", " "), s, s / before)
        for name, s in found["waterfall_s"].items()
        if abs(s) >= units.LEAST
    ]
    grew = "How much its part of the critical path grew; the rows sum to the difference."
    return [
        table(
            waterfall,
            "cause",
            Column("seconds", form="s", note=grew),
            Column("of before", form="share", note="Share of the first timeline's seconds."),
            title="What makes the difference",
        ),
        table(
            found["changed"],
            ("op", "name"),
            ("of", "cause"),
            ("before", "before", "", None, "Ops of this name, all ranks."),
            ("after", "after"),
            ("seconds before", "before_s", "s"),
            ("after", "after_s", "s"),
            ("change", "change_s", "s", None, "Seconds, all ranks."),
            title="Ops that changed most",
        ),
    ]


def of_ranks(found: Mapping[str, Any]) -> Table:
    """Return a table of what each rank does, and how long ranks wait for each other."""
    late = {row["rank"]: row for row in found["stragglers"]["per_rank"]}
    rows = [{**late[row["rank"]], **row} for row in found["per_rank"]]
    return table(rows, *_RANKS, title="Ranks")
