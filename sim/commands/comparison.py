"""What ``traincast compare`` shows: a row for each way, the timelines, time against memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sim.commands import tables
from sim.compare import Way
from sim.files import replacing

Figures = Mapping[str, Any]
COLUMNS = ("way", "step, s", "idle", "most of it", "memory, GiB", "pp, GiB", "exposed, s")


def summaries(ways: Sequence[Way]) -> list[dict[str, Any]]:
    """The summary of each way with its name, or its name and why it cannot run."""
    return [
        {"name": way.name, **(way.result.summary if way.result else {"refused": way.refused})}
        for way in ways
    ]


def show(ways: Sequence[Way]) -> None:
    """Print a row for each way that ran, and a sentence for each that did not."""
    table = Table()
    for name in COLUMNS:
        table.add_column(
            name,
            justify="left" if name in ("way", "most of it") else "right",
            no_wrap=name not in ("way", "most of it"),
            overflow="fold",
            min_width=min(max((len(way.name) for way in ways), default=0), 23) * (name == "way"),
        )
    for way in ways:
        if way.result:
            table.add_row(*row(way.name, way.result.summary))
    Console().print(table)
    for way in ways:
        if way.result is None:
            tables.say(f"{way.name}: {way.refused}")


def row(name: str, summary: Figures) -> tuple[str, ...]:
    """Step time, share and main cause of not computing, memory of the rank that needs most, what a
    rank sends along the pipeline at most, and exposed communication."""
    causes = summary["bubble"]["by_cause_s"]
    worst = max(causes, key=lambda cause: causes[cause], default="")
    sent = summary["bytes_sent"].get("pp", {}).values()
    exposed = sum(spread["mean"] for spread in summary["time_s"]["exposed"].values())
    return (
        name,
        f"{summary['step_time_s']:.4g}",
        f"{summary['bubble']['idle_share_of_step']:.1%}",
        worst.replace("_", " "),
        f"{peak(summary) / 2**30:.2f}",
        f"{max(sent, default=0.0) / 2**30:.2f}",
        f"{exposed:.3g}",
    )


def peak(summary: Figures) -> float:
    """Bytes at the peak of the rank that holds most."""
    return max(float(entry["peak_bytes"]) for entry in summary["memory"])


def draw(ways: Sequence[Way], out: Path) -> None:
    """Write the timelines under each other, and step time against memory."""
    from sim import plots

    ran = {way.name: way.result for way in ways if way.result}
    if not ran:
        return
    first = next(iter(ran.values()))
    points = [
        plots.Point(name, result.summary["step_time_s"], peak(result.summary))
        for name, result in ran.items()
    ]
    title = str(first.recipe.model.name)
    timelines = {name: result.timeline for name, result in ran.items()}
    pictures = {
        "compare.png": plots.timelines(timelines, title=title),
        "frontier.png": plots.frontier(points, capacity=first.cluster.gpu.memory, title=title),
    }
    for name, picture in pictures.items():
        with replacing(out / name) as temporary:
            plots.save(picture, temporary)
    tables.show_files(out / name for name in pictures)
