"""The tables of ``traincast analyze``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from rich import box
from rich.console import Console
from rich.table import Table

from sim.analysis.words import CAUSES, cause_name
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


_TRANSFERS = {
    "waiting": "waits",
    "moving": "moves",
    "exposed": "exposed",
    "exposed_waiting": "of it\nwaiting",
    "hidden": "hidden",
}
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


def _show(rows: Sequence[Sequence[str]], *columns: str) -> None:
    """Print a table with a line under its head and none around it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for k, name in enumerate(columns):
        table.add_column(name, justify="right" if k else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console().print()
    Console().print(table)


def _some(rows: Sequence[Sequence[str]], most: int) -> list[Sequence[str]]:
    """Return the first rows, and how many more there are."""
    if len(rows) <= most:
        return [*rows]
    return [*rows[: most - 1], (f"{len(rows) - most + 1} more", *[""] * (len(rows[0]) - 1))]


def _show_steps(steps: Sequence[Figures], everything: bool) -> None:
    if everything:
        rows = [(str(s["step"]), seconds(s["start_s"]), seconds(s["seconds"])) for s in steps]
        _show(rows, "step", "begins", "takes")
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
    rows = [
        (
            str(row["rank"]),
            seconds(row["span_s"]),
            *(
                f"{100 * row[f'{key}_share']:.1f}%"
                for key in ("empty", "compute", "communication", "overlap")
            ),
            seconds(by_rank[row["rank"]]["waits_s"]),
            seconds(by_rank[row["rank"]]["caused_s"]),
        )
        for row in order
    ]
    columns = ("rank", "span", "nothing", "compute", "transfer", "overlap", "waits", "awaited")
    _show(_some(rows, most), *columns)
    if len(ranks) > 1:
        say(_SHARES)


def _by_cause(of: Mapping[str, float], title: str, words: Mapping[str, str], most: int) -> None:
    total = fsum(of.values())
    rows = [
        (words.get(name) or cause_name(name), seconds(s), f"{s / total:.1%}")
        for name, s in sorted(of.items(), key=lambda item: -item[1])
        if s > 0
    ]
    if rows:
        _show(_some(rows, most), f"{title}: {seconds(total)}", "seconds", "share")


def _show_transfers(overlap: Sequence[Figures], most: int) -> None:
    rows = [
        (
            row["dimension"],
            *(seconds(row[f"{key}_s"]) for key in _TRANSFERS),
            f"{row['hidden_share']:.1%}",
        )
        for row in overlap
    ]
    if rows:
        _show(_some(rows, most), "transfers,\nmean", *_TRANSFERS.values(), "hidden\nshare")


def _show_collectives(groups: Sequence[Figures]) -> None:
    rows = [
        (
            f"{row['dimension']}, {row['members']} ranks each",
            f"{row['groups']:,}",
            f"{row['number']:,}",
            *(seconds(row[key]) for key in ("waiting_s", "transfer_s", "longest_wait_s")),
        )
        for row in groups
    ]
    if rows:
        columns = ("groups", "number", "waits", "moves", "longest wait")
        _show(rows, "collectives, per rank", *columns)


def _show_stragglers(late: Figures, everything: bool) -> None:
    for key, name in (("by_stage", "stage"), ("by_replica", "replica"), ("by_kind", "operations")):
        rows = [(label, f"{of:.4f}") for label, of in late.get(key, {}).items()]
        of_study = late["method"] == "equal operations"  # otherwise the sentence below has kinds
        if of_study and len(rows) > 1 and (everything or key == "by_stage"):
            _show(
                _some(rows, 1 << 30 if everything else 4), f"{name} alone as recorded", "slowdown"
            )
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
