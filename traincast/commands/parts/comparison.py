"""What ``traincast compare`` shows: a row for each way, the timelines, time against memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim import units
from sim.analysis.steps import one
from sim.analysis.words import main_causes
from sim.files import together
from sim.machine.provenance import sentence
from sim.memory.runtime import needed
from sim.runs.compare import Way
from sim.runs.run import Result
from sim.runs.winner import Why, parts, why
from sim.table import Table as Rows
from traincast.commands.parts import tables

Figures = Mapping[str, Any]
FIGURES = 41  # letters that the other columns take, with the gaps between them
COLUMNS = (
    "way",
    "step, s",
    "idle",
    "mostly because of",
    "memory\nneeded,\nGiB",
    "sent,\npp,\nGiB",
    "exposed or\nwaiting, s",
)
LEAST = 5e-4  # of a step: smaller parts of it are not shown
WIDE = 130  # a terminal of so many columns shows all causes in one line


def summaries(ways: Sequence[Way]) -> list[dict[str, Any]]:
    """Return each way's name with its summary and accounting, or with why it cannot run."""
    return [
        {
            "name": way.name,
            **(
                {**way.result.summary, "accounting_s": parts(way.result)}
                if way.result
                else {"refused": way.refused}
            ),
        }
        for way in ways
    ]


def show(ways: Sequence[Way]) -> None:
    """Print a row for each way that ran, the fastest first, and why each of the others did not."""
    console = Console()
    wide = console.width >= WIDE
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, int(wide)))
    longest = min(max((len(way.name) for way in ways), default=0), 23)
    for name in COLUMNS:
        table.add_column(
            name,
            justify="left" if name in ("way", "mostly because of") else "right",
            no_wrap=name not in ("way", "mostly because of"),
            overflow="fold",
            min_width=longest if name == "way" else 0,
            max_width=max(console.width - longest - FIGURES, 15)
            if name == "mostly because of"
            else None,
        )
    between = ", " if wide else "\n"
    ran = fastest(ways)
    for name, result in ran.items():
        table.add_row(escape(name), *row(result.summary, between))
    if ran:
        console.print(table)
        warn_overflow(ran)
        borrowed = {name: result.summary["machine"]["borrowed"] for name, result in ran.items()}
        tables.show_uncalibrated({name: sentence(of) for name, of in borrowed.items()})
        show_why(why(ways))
    for way in ways:
        if way.result is None:
            tables.say(f"{way.name}: {shortened(way.refused)}")


def show_why(found: Why | None) -> None:
    """Print what the seconds of the winner and of the runner-up go to, on their busiest ranks."""
    if found:
        faster = units.seconds(found.before_s - found.after_s)
        tables.say(f"why {found.winner} is {faster} faster than {found.runner_up}:")
        of = winner_table(found)
        tables.show(of.rows, *of.columns)


def winner_table(found: Why) -> Rows:
    """Return the table of the parts of the two steps that are not the same."""
    from sim.report.others import of_winner

    parts = {k: both for k, both in found.parts.items() if max(both) >= LEAST * found.before_s}
    return of_winner((found.runner_up, found.winner), parts)


def warn_overflow(ran: Mapping[str, Result]) -> None:
    """Say in red which ways need more memory than their GPU has, CUDA's context included."""
    over = [
        f"{name} ({units.size(need)} of {units.size(result.cluster.gpu.memory)})"
        for name, result in ran.items()
        if (need := most(result.summary)) > result.cluster.gpu.memory
    ]
    if over:
        tables.say(f"out of memory with context and NCCL: {', '.join(over)}", style="bold red")


def fastest(ways: Sequence[Way]) -> dict[str, Result]:
    """Return the results of the ways that ran, ordered by step time."""
    ran = {way.name: way.result for way in ways if way.result}
    return dict(sorted(ran.items(), key=lambda item: float(item[1].summary["step_time_s"])))


def shortened(reason: str) -> str:
    """Return the reason; of a deadlock only the first wait and what would run.

    >>> shortened("deadlock: a waits for b, which comes after c, which waits for a; d runs it")
    'deadlock: a waits for b, and so on in a circle; d runs it'
    """
    first, which, rest = reason.partition(", which ")
    if "deadlock: " not in first or not which:
        return reason
    advice = rest.rpartition("; ")
    return f"{first}, and so on in a circle{''.join(advice[1:]) if advice[1] else ''}"


def row(summary: Figures, between: str = ", ") -> tuple[str, ...]:
    """Return the cells of a row.

    They are the step time, the share and main causes of not computing, the memory of the rank that
    needs most, the most that a rank sends along the pipeline, and exposed communication.
    """
    sent = summary["bytes_sent"].get("pp", {}).values()
    exposed = fsum(spread["mean"] for spread in summary["time_s"]["exposed"].values())
    return (
        f"{summary['step_time_s']:.4g}",
        f"{summary['bubble']['idle_share_of_step']:.1%}",
        between.join(main_causes(summary)),
        f"{most(summary) / 2**30:.2f}",
        f"{max(sent, default=0.0) / 2**30:.2f}",
        f"{exposed:.2g}",
    )


def most(summary: Figures) -> float:
    """Return the bytes, with context and NCCL, of the rank that needs most."""
    return max(map(needed, summary["memory"]))


PICTURES = ("compare.png", "frontier.png", "why.png")
PAGE = "compare.html"


def draw(ways: Sequence[Way], out: Path) -> list[Path]:
    """Write a page and a picture of the timelines, time against memory, and why the first wins."""
    from sim import plots, report

    ran = fastest(ways)
    if not ran:
        return []
    first = next(iter(ran.values()))
    points = [
        plots.Point(name, result.summary["step_time_s"], most(result.summary))
        for name, result in ran.items()
    ]
    title = str(first.recipe.model.name)
    timelines = {name: one(result.timeline, result.recipe.ramps[0]) for name, result in ran.items()}
    drawn = [
        plots.timelines(timelines, title=title),
        plots.frontier(
            points,
            capacity=first.cluster.gpu.memory,
            title=title,
            what="peak memory with context and NCCL",
        ),
    ]
    others = []
    if found := why(ways):
        names = (found.runner_up, found.winner)
        drawn.append(
            plots.waterfall(
                found.before_s, found.after_s, found.changes(), names=names, title=title
            )
        )
        others.append(winner_table(found))
    refused = {way.name: shortened(way.refused) for way in ways if way.result is None}
    shown = {name: (of, ran[name].summary) for name, of in timelines.items()}
    text = report.of_comparison(title, shown, first.cluster.gpu.memory, refused, others)
    files = [out / name for name in (PAGE, *PICTURES[: len(drawn)])]
    with together(*files) as (page, *pictures):
        page.write_text(text, encoding="utf-8", newline="")
        for picture, temporary in zip(drawn, pictures, strict=True):
            plots.save(picture, temporary)
    return files
