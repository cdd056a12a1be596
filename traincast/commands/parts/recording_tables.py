"""The tables of ``traincast analyze``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.analysis.words import CAUSES, cause_name
from sim.table import table
from sim.units import seconds
from traincast.commands.parts.figures import Figures
from traincast.commands.parts.tables import say

ROWS = 5
"""How many rows of a table are shown, unless all are asked for."""
_SHARES = (
    "nothing (neither kernel nor transfer), compute, transfer (alone): shares of the span; "
    "overlap: share of communication that runs beside computing; waits: time spent waiting for "
    "later ranks; awaited: time that others wait for this rank, summed over them"
)
_HOST = {
    "host operators": "host: operators and calls",
    "host other": "host: between operators (Python)",
    "sync": "host: coming back from waits",
    "launch": "launch, until the op starts",
    "gap": "gap between two ops",
    "late start": "late start, for no known reason",
    "lag": "gap before an op",
}


_TRANSFERS = (
    ("transfers,\nmean", "dimension"), ("waits", "waiting_s", "s"), ("moves", "moving_s", "s"),
    ("exposed", "exposed_s", "s"), ("of it\nwaiting", "exposed_waiting_s", "s"),
    ("hidden", "hidden_s", "s"), ("hidden\nshare", "hidden_share", ".1%"),
)  # fmt: skip
_RANKS = (
    ("rank", "rank"), ("span", "span_s", "s"), ("nothing", "empty_share", ".1%"),
    ("compute", "compute_share", ".1%"), ("transfer", "communication_share", ".1%"),
    ("overlap", "overlap_share", ".1%"), ("waits", "waits_s", "s"), ("awaited", "caused_s", "s"),
)  # fmt: skip
_IDLE = {
    **CAUSES,
    "warm_up": "warm-up: it has not computed yet",
    "drain": "drain: it will not compute any more",
    "launch": "launch: the host comes too late",
}


def show_figures(found: Figures, everything: bool = False) -> None:
    """Print the figures as tables, warnings last; long tables are cut unless ``everything``."""
    most = 1 << 30 if everything else ROWS
    say(_summary(found))
    if len(found["steps"]) > 1:
        _show_steps(found["steps"], everything)
    if found["per_rank"]:
        _show_ranks(found["per_rank"], found["stragglers"]["per_rank"], most)
    _by_cause(found["critical_path"]["by_cause_s"], "critical path", _HOST, most)
    _by_cause(found["bubble"]["by_cause_s"], "idle (not computing), mean of ranks", _IDLE, most)
    _show_transfers(found["overlap"], most)
    if everything:
        _show_collectives(found["collective_groups"])
    _show_stragglers(found["stragglers"], everything)
    for sentence in found["warnings"]:
        Console().print(f"note: {sentence}", style="yellow", highlight=False, soft_wrap=True)


def _summary(found: Figures) -> str:
    """Return what was read, in a sentence.

    >>> _summary({"format": "nsys", "ranks": [0], "span_s": 2.0, "gpu_ops": 1200})
    'nsys: 1 rank, 2 s from first start to last end; 1,200 ops'
    """
    ranks = len(found["ranks"])
    said = f"{found['format']}: {ranks:,} rank{'s' * (ranks != 1)}, "
    said += f"{seconds(found['span_s'])} from first start to last end"
    ops = found.get("gpu_ops", found.get("cpu_ops"))
    if ops is not None:
        said += f"; {ops:,} ops"
    if "gpu_ops_linked" in found:
        said += f", {found['gpu_ops_linked']:,} linked to their launch"
    if found.get("collectives"):
        matched = found["collectives_matched"]
        said += f"; {found['collectives']:,} collectives and messages, {matched:,} matched"
    if ranks > 1 and found["clocks"]["residual_s"]:
        said += f", whose ends are {seconds(found['clocks']['residual_s'])} apart (median)"
    return said


def _show(rows: Sequence[Any], *columns: str | tuple[Any, ...], most: int = 1 << 30) -> None:
    """Print a table with a line under its head and none around it, if there are rows."""
    if not rows:
        return
    of = table(rows, *columns)
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in of.columns:
        out.add_column(column.name, justify="left" if column.left else "right", no_wrap=True)
    cells = of.cells()
    for row in cells if len(cells) <= most else cells[: most - 1]:
        out.add_row(*map(escape, row))
    if len(cells) > most:
        out.add_row(f"{len(cells) - most + 1} more")
    Console().print()
    Console().print(out)


def _show_steps(steps: Sequence[Figures], everything: bool) -> None:
    if everything:
        _show(steps, ("step", "step"), ("begins", "start_s", "s"), ("takes", "seconds", "s"))
        return
    took = [step["seconds"] for step in steps]
    say(
        f"{len(took)} steps: {seconds(fsum(took) / len(took))} on average, "
        f"{seconds(min(took))} to {seconds(max(took))}"
    )


def _show_ranks(ranks: Sequence[Figures], late: Sequence[Figures], most: int) -> None:
    by_rank = {row["rank"]: row for row in late}
    order = [*ranks]
    if len(order) > most:  # show those that keep others waiting longest
        order.sort(key=lambda row: (-by_rank[row["rank"]]["caused_s"], row["rank"]))
    _show([{**by_rank[row["rank"]], **row} for row in order], *_RANKS, most=most)
    if len(ranks) > 1:
        say(_SHARES)


def _by_cause(of: Mapping[str, float], title: str, words: Mapping[str, str], most: int) -> None:
    total = fsum(of.values())
    rows = [
        (words.get(name) or cause_name(name), s, s / total)
        for name, s in sorted(of.items(), key=lambda item: -item[1])
        if s > 0
    ]
    head = f"{title}: {seconds(total)}"
    _show(rows, head, ("seconds", 1, "s"), ("share", 2, ".1%"), most=most)


def _show_transfers(overlap: Sequence[Figures], most: int) -> None:
    _show(overlap, *_TRANSFERS, most=most)


def _show_collectives(groups: Sequence[Figures]) -> None:
    _show(
        groups,
        ("collectives, per rank", lambda row: f"{row['dimension']}, {row['members']} ranks each"),
        ("groups", "groups", ","),
        ("number", "number", ","),
        ("waits", "waiting_s", "s"),
        ("moves", "transfer_s", "s"),
        ("longest wait", "longest_wait_s", "s"),
    )


def _show_stragglers(late: Figures, everything: bool) -> None:
    for key, name in (("by_stage", "stage"), ("by_replica", "replica"), ("by_kind", "operations")):
        rows = [*late.get(key, {}).items()]
        of_study = late["method"] == "equal operations"  # otherwise the sentence below has kinds
        if of_study and len(rows) > 1 and (everything or key == "by_stage"):
            few = 1 << 30 if everything else 4
            _show(rows, f"{name} alone as recorded", ("slowdown", 1, ".4f"), most=few)
    Console().print()
    if late["worst"] is not None:
        say(straggler(late))
    if late.get("unknown"):
        say(late["unknown"])
    if late["slowdown"] is not None:
        say(_slowdown(late))
    if late.get("worst_ranks"):
        ranks = ", ".join(map(str, late["worst_ranks"][:8]))
        say(
            f"slowest by replica and stage: rank {ranks}; without it "
            f"{late['worst_ranks_share']:.1%} of the slowdown goes, without the last stage "
            f"{late['last_stage_share']:.1%}"
        )


def _slowdown(late: Figures) -> str:
    """Return what stragglers cost, and which kinds of time, in a sentence.

    >>> _slowdown({"slowdown": 1.25, "method": "equal ranks", "by_kind": {"host": 1.25}})[:66]
    'slowdown by stragglers: 1.2500, over the step in which all ops tak'
    """
    how = "of a kind took equally long"
    if late["method"] != "equal operations":
        how = "take what is usual among those alike"
    said = f"slowdown by stragglers: {late['slowdown']:.4f}, over the step in which all ops {how}"
    if late["method"] == "equal operations":
        return said
    by = [f"{of:.4f} by {name} alone" for name, of in late["by_kind"].items() if of > 1.00005]
    return f"{said}{'; ' if by else ''}{', '.join(by)}"


def straggler(late: Figures) -> str:
    """Return which rank others wait for longest, in a sentence.

    >>> rows = [{"rank": 0, "caused_s": 3.0}, {"rank": 1, "caused_s": 1.0}]
    >>> straggler({"worst": 0, "per_rank": rows})
    'rank 0 keeps others waiting most: 75.0% of the waiting for ranks is for it'
    """
    total = fsum(row["caused_s"] for row in late["per_rank"])
    worst = next(row for row in late["per_rank"] if row["rank"] == late["worst"])
    share = worst["caused_s"] / total
    rank = late["worst"]
    return f"rank {rank} keeps others waiting most: {share:.1%} of the waiting for ranks is for it"
