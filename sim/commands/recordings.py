"""What a recorded run shows: ranks, links, shares of time, who keeps whom waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from sim.analysis.lateness import Lateness, lateness
from sim.analysis.shares import shares
from sim.commands import output
from sim.commands.figures import Figures, seconds
from sim.commands.tables import show
from sim.timeline import Timeline
from traces.recording import Recording

_SHARES = (
    "shares of a rank's span: idle, computing, only transfers; overlap: of\n"
    "communication, beside computing; waits: for ranks that come later;\n"
    "awaited: by others, for coming last"
)
Writer = Callable[[Timeline, Path], object]
PAGE = "report.html"


def writer(name: str) -> Writer:
    """What writes a timeline in a format. Raises ValueError for one that there is not."""
    from traces import perfetto

    writers: dict[str, Writer] = {"perfetto": perfetto.write}
    if name not in writers:
        raise ValueError(f"--to: cannot write {name!r}; there are {', '.join(writers)}")
    return writers[name]


def convert(recording: Recording, write: Writer, path: Path) -> None:
    """Write the recording's timeline, under another name until it is whole."""
    with output.replacing(path) as temporary:
        write(recording.timeline, temporary)


def write_page(out: Path, traces: Sequence[Path], recording: Recording, found: Figures) -> Path:
    """Write the page of a recording."""
    from sim import report

    more = f" and {len(traces) - 1} more" if len(traces) > 1 else ""
    text = report.of_recording(f"{traces[0].name}{more}", recording.timeline, found)
    return output.write_text(out / PAGE, text)


def figures(recording: Recording) -> dict[str, Any]:
    """All that ``analyze --json`` prints."""
    late = lateness(recording.timeline)
    return {
        "format": recording.format,
        "ranks": recording.timeline.graph.ranks().tolist(),
        "span_s": recording.timeline.seconds,
        **recording.counts,
        "per_rank": [row._asdict() for row in shares(recording.timeline)],
        "stragglers": _stragglers(late),
        "clocks": _clocks(recording),
        "warnings": list(recording.warnings),
    }


def _stragglers(late: Lateness) -> dict[str, Any]:
    """Who comes last; ``slowdown`` is a bound: the step over the step less mean waiting."""
    columns = zip(late.ranks.tolist(), late.waits, late.causes, late.last, strict=True)
    return {
        "slowdown": late.slowdown,
        "worst": late.worst,
        "per_rank": [
            {"rank": r, "waits_s": float(w), "caused_s": float(c), "came_last": int(n)}
            for r, w, c, n in columns
        ],
    }


def _clocks(recording: Recording) -> dict[str, Any]:
    return {
        "offset_s": {str(rank): s for rank, s in recording.clock_offsets.items()},
        "drift": {str(rank): s for rank, s in recording.clock_drifts.items()},
        "residual_s": recording.clock_residual,
    }


def show_figures(found: Figures) -> None:
    """Print them as tables, warnings last."""
    counted = {
        "GPU ops, linked to their launch": ("gpu_ops", "gpu_ops_linked"),
        "collectives, matched over ranks": ("collectives", "collectives_matched"),
    }
    rows = [("format", found["format"]), ("ranks", f"{len(found['ranks']):,}")]
    rows.append(("first start to last end", seconds(found["span_s"])))
    for name, (all_, some) in counted.items():
        if all_ in found:
            rows.append((name, f"{found[all_]:,}, {found.get(some, 0):,}"))
    if len(found["ranks"]) > 1:
        rows.append(("ends of collectives apart, median", seconds(found["clocks"]["residual_s"])))
    show(rows, "recording", "value")
    if found["per_rank"]:
        _show_ranks(found["per_rank"], found["stragglers"]["per_rank"])
    if found["stragglers"]["worst"] is not None:
        print(straggler(found["stragglers"]))
    for sentence in found["warnings"]:
        Console().print(f"note: {sentence}", style="yellow", highlight=False, soft_wrap=True)


def _show_ranks(ranks: Sequence[Figures], late: Sequence[Figures]) -> None:
    by_rank = {row["rank"]: row for row in late}
    show(
        (
            (
                str(row["rank"]),
                seconds(row["span_s"]),
                *(
                    f"{100 * row[f'{key}_share']:.1f}%"
                    for key in ("idle", "compute", "communication", "overlap")
                ),
                seconds(by_rank[row["rank"]]["waits_s"]),
                seconds(by_rank[row["rank"]]["caused_s"]),
            )
            for row in ranks
        ),
        "rank", "span", "idle", "compute", "transfer", "overlap", "waits", "awaited",
        title=_SHARES,
    )  # fmt: skip


def straggler(late: Figures) -> str:
    """Who others wait for longest, in a sentence.

    >>> rows = [{"rank": 0, "caused_s": 3.0}, {"rank": 1, "caused_s": 1.0}]
    >>> straggler({"worst": 0, "per_rank": rows})
    'rank 0 comes last most: 75.0% of all waiting for other ranks is for it'
    """
    total = sum(row["caused_s"] for row in late["per_rank"])
    worst = next(row for row in late["per_rank"] if row["rank"] == late["worst"])
    share = worst["caused_s"] / total
    rank = late["worst"]
    return f"rank {rank} comes last most: {share:.1%} of all waiting for other ranks is for it"
