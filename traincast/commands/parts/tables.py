"""Tables for people: a run's summary, a job's memory, a schedule's figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim import units
from sim.late import cells, console, markup, table
from sim.memory.runtime import needed
from sim.table import table as table_of
from traincast.commands.parts.figures import (
    Figures,
    cause_rows,
    same,
    summary_rows,
)
from traincast.commands.parts.folding import folded

if TYPE_CHECKING:
    from traces.chrome import Written

NEAREST = (("nearest measured runs", "run"), ("family", "family"), ("our error", "error", "+.1%"))
LEAST = 16  # a folded first column has at least so many letters


def show(rows: Iterable[Any], *columns: str | tuple[Any, ...], title: str | None = None) -> None:
    """Print a table of these columns, as :func:`sim.table.table` takes them."""
    screen = console.Console()
    name = title and markup.escape(title)
    out = table.Table(title=name, title_justify="left", title_style="bold")
    of = table_of(rows, *columns)
    texts, (head, *heads) = of.cells(), [column.name for column in of.columns]
    # Figures stay whole: where a line is too narrow, headings and the first column are folded
    widths = [_figures(name, [row[k] for row in texts]) for k, name in enumerate(heads, 1)]
    left = max(screen.width - 4 - sum(width + 3 for width in widths), LEAST)
    longest = max((cells.cell_len(row[0]) for row in texts), default=0)
    if fits := longest <= left:
        out.add_column(head, no_wrap=True, max_width=left)
    else:
        texts = [[folded(first, left), *others] for first, *others in texts]
        out.add_column(head, overflow="fold", width=left)
    for name, width in zip(heads, widths, strict=True):
        out.add_column(name, justify="right", min_width=width, max_width=None if fits else width)
    for row in texts:
        out.add_row(*map(markup.escape, row))
    screen.print(out)


def _figures(heading: str, column: Sequence[str]) -> int:
    """Return the letters of the widest cell, or of the widest word of the heading."""
    texts = [*heading.split(), *(line for cell in column for line in cell.splitlines())]
    return max(map(cells.cell_len, texts), default=0)


def say(sentence: str, style: str | None = None, *, stderr: bool = False) -> None:
    """Print a sentence as it is, however long."""
    screen = console.Console(stderr=stderr)
    screen.print(sentence, style=style, highlight=False, markup=False, soft_wrap=True)


def show_list(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print names and what each is; numbers are aligned right."""
    out = table.Table()
    texts = [list(row) for row in rows]
    for k, name in enumerate(headings):
        number = all(row[k].lstrip("-")[:1].isdigit() or row[k] in ("any", "-") for row in texts)
        whole = k == 0 or not any(" " in row[k] for row in (headings, *texts))  # has no line break
        out.add_column(name, justify="right" if number else "left", no_wrap=whole)
    for row in texts:
        out.add_row(*row)
    console.Console().print(out)


def show_machine(machine: Figures) -> None:
    """Print a machine: its GPUs, then which links it has."""
    from traincast.commands.parts.machine import gpu_rows, link_rows

    show(gpu_rows(machine), "machine", "value", title=str(machine["name"]))
    show(link_rows(machine), "links", "number", "bandwidth each way", "latency")
    show_borrowed(machine)


def show_borrowed(machine: Figures) -> None:
    """Print, in a line, which constants of a machine were measured on another one."""
    from sim.machine.provenance import sentence

    if said := sentence(machine["borrowed"]):
        say(said)


def show_uncalibrated(said: Mapping[str, str | None]) -> None:
    """Print what is uncalibrated, by way: a line for each sentence, with the ways unless all."""
    for sentence in dict.fromkeys(filter(None, said.values())):
        of = [name for name, one in said.items() if one == sentence]
        names = ", ".join(of[:4]) + (", ..." if of[4:] else "")
        say(sentence if len(of) == len(said) else f"{names}: {sentence}")


def show_host(pace: Figures) -> None:
    """Print, in a line, that kernels are shorter than it takes to issue them, if they are."""
    from sim.runs.hosted import sentence

    if said := sentence(pace):
        say(said, None if pace["simulated"] else "bold red")


def show_summary(summary: Figures, capacity: float) -> None:
    """Print the figures of ``summary.json``; what does not fit into ``capacity`` bytes in red."""
    show(summary_rows(summary), "figure", "value")
    show(summary["nearest_measured"], *NEAREST)
    if causes := cause_rows(summary):
        show(causes, "why ranks do not compute", "mean", "share of step")
    if summary["time_s"]["exposed"]:
        show_communication(summary["time_s"])
    show_memory(summary["memory"], capacity)
    show_borrowed(summary["machine"])
    show_host(summary["host"])


def show_communication(time: Figures) -> None:
    """Print seconds by dimension: exposed, the part of it that is waiting, and hidden.

    The maximum over ranks is shown where it differs from the mean. Waiting behind kernels, such as
    that of a receive that is posted early, costs nothing and is not shown.
    """
    kinds = ("exposed", "exposed_waiting", "hidden")
    heads = ("exposed", "of it waiting", "hidden")
    one = all(same(time[kind][name]) for kind in kinds for name in time["exposed"])
    columns = [
        (head if one else f"{head}\n{part}", lambda name, k=kind, p=part: time[k][name][p], "s")
        for kind, head in zip(kinds, heads, strict=True)
        for part in (("mean",) if one else ("mean", "max"))
    ]
    show(time["exposed"], ("transfers", str), *columns)


def show_memory(memory: Sequence[Figures], capacity: float) -> None:
    """Print the least and the most that a rank holds at its peak, and what that consists of."""
    low, high = (pick(memory, key=needed) for pick in (min, max))
    ends = [high] if needed(low) == needed(high) else [low, high]
    categories = sorted({name for end in ends for name in end["by_category"]})
    rows = [
        ("peak", *(end["peak_bytes"] for end in ends)),
        *(
            (name.replace("_", " "), *(end["by_category"].get(name, 0.0) for end in ends))
            for name in categories
        ),
        ("with context and NCCL", *map(needed, ends)),
    ]
    names = [
        f"{word}: rank {end['rank']}" for word, end in zip(("least", "most"), ends, strict=False)
    ]
    if len(ends) == 1:
        alike = all(entry["by_category"] == high["by_category"] for entry in memory)
        several = sum(int(entry.get("stands_for", 1)) for entry in memory) > 1
        names = ["every rank" if alike and several else f"rank {high['rank']}"]
    columns = [(name, k, "bytes") for k, name in enumerate(names, 1)]
    show(rows, f"memory of {units.size(capacity)}", *columns)
    show_at_peak(high)
    warn_overflow(memory, capacity, stderr=False)


def show_at_peak(entry: Figures) -> None:
    """Print, a line each, which decisions hold memory at a rank's peak that is freed later."""
    of = entry.get("at_peak")
    if of and of["causes"]:
        say(f"at the peak of rank {entry['rank']}, in {of['op']}:")
        for cause in of["causes"]:
            say(f"  {cause}")


def warn_overflow(memory: Sequence[Figures], capacity: float, *, stderr: bool = True) -> None:
    """Say in red which ranks need more than ``capacity`` bytes, if any do."""
    if sentence := overflow(memory, capacity):
        say(sentence, "bold red", stderr=stderr)


def overflow(memory: Sequence[Figures], capacity: float) -> str | None:
    """Return one sentence: which ranks need more bytes than a GPU has; None when all fit.

    >>> overflow([{"rank": 0, "stands_for": 4, "peak_bytes": 90.0}], 80.0)
    'does not fit: rank 0 (stands for 4) needs 90 B of 80 B (90 of 80 bytes)'
    """
    over = [entry for entry in memory if needed(entry) > capacity]
    if not over:
        return None
    worst = max(over, key=needed)
    ranks = ", ".join(str(entry["rank"]) for entry in over[:8]) + (", ..." if over[8:] else "")
    many = sum(int(entry.get("stands_for", 1)) for entry in over)
    who = (
        f"rank {ranks} (stands for {many}) needs"
        if len(over) == 1
        else (f"ranks {ranks} ({many} in the job) need up to")
    )
    need = needed(worst)
    return (
        f"does not fit: {who} {units.size(need)} of {units.size(capacity)} "
        f"({need:.0f} of {capacity:.0f} bytes)"
    )


def show_schedule(name: str, result: Figures) -> None:
    """Print a schedule's makespan, its bubble in both counts, and each rank's figures."""
    keys = ("busy_s", "idle_s", "idle_in_span_s", "peak_activations")
    names = ("busy, s", "idle, s", "idle in own span, s", "peak activations, stages")
    title = (
        f"{name}: makespan {result['makespan_s']:g} s, "
        f"longest span of a rank {result['longest_span_s']:g} s\n"
        f"bubble: {result['bubble_rate_makespan']:.2%} of the makespan (most idle rank), "
        f"{result['bubble_rate_longest_span']:.2%} of the longest span"
    )
    columns = [(name, k, "g") for k, name in enumerate(names, 1)]
    ranks = zip(count(), *(result[key] for key in keys))
    show(ranks, "rank", *columns, title=title)


def show_files(files: Iterable[Path]) -> None:
    """Print what was written, one path a line."""
    for file in files:
        say(f"wrote {file}")


def show_traced(traced: Written, ops: int) -> None:
    """Say which ranks the trace files hold, if they do not hold all."""
    if not traced.complete:
        some = ", ".join(map(str, traced.ranks[:6])) + (", ..." if traced.ranks[6:] else "")
        shown = f"rank{'s' * (len(traced.ranks) != 1)} {some}"
        say(
            f"the traces hold {traced.ops:,} of {ops:,} ops, those of {shown}; "
            "--ranks and --window choose others"
        )
