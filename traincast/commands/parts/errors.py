"""Predictions against measurements, as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schedules.input_error import InputError
from traincast.commands.parts import output
from traincast.commands.parts.tables import show

if TYPE_CHECKING:
    from validation.run import TableOutcome

Figures = Mapping[str, Any]
FAMILY = ("family", "rows", "mean", "bias", "max", "rank", "inside", "width", "peer")
READ = (
    "A family is runs of one framework. Mean and max are of |error|, bias is the mean signed error,"
    " rank is Spearman's correlation of model FLOP/s per GPU, inside is the share of the rows whose"
    " interval of 80 % holds the measured time, width the median of its width over the predicted"
    " time, and peer the mean error of another simulator on the rows that its table names."
)


def show_errors(found: Figures) -> None:
    """Print every table of `validation.run.summary`, its assumptions and its peer's errors."""
    for table in found["tables"]:
        title = f"{table['title']}\n{table['source']}\nassumed: {table['assumed']}"
        title += f"\nleft out: {table['left_out']}" if table["left_out"] else ""
        show(rows(table), *columns(table), title=title)
        print(f"{total(table)}{peer(table)}\n")
    if found["families"]:
        show([by_family(row) for row in found["families"]], *FAMILY, title=READ)
    if found["steps"]:
        print(f"all step times: {total(found['steps'])}")


def columns(table: Figures) -> tuple[str, ...]:
    """Return the heads of a table; those of step times have intervals."""
    unit = table["unit"]
    more = ("80 % interval",) if any("interval" in row for row in table["rows"]) else ()
    return (table["name"], f"predicted, {unit}", f"measured, {unit}", "error", *more)


def rows(table: Figures) -> list[tuple[str, ...]]:
    """Return a table's rows in its unit."""
    scale = table["per_unit"]
    return [
        (
            row["id"],
            f"{row['predicted'] / scale:.3f}",
            f"{row['measured'] / scale:.3f}",
            f"{row['error'] * 100:+.1f} %",
            *([_interval(row["interval"], scale)] if "interval" in row else ()),
        )
        for row in table["rows"]
    ]


def _interval(ends: Sequence[float], scale: float) -> str:
    return " to ".join(f"{end / scale:.3f}" for end in ends)


def total(errors: Figures) -> str:
    """Return the mean and the largest error in words.

    >>> total({"mean": 0.02, "max": 0.031, "count": 3})
    'mean |error| 2.0 %, max 3.1 %, 3 rows'
    """
    count = "1 row" if errors["count"] == 1 else f"{errors['count']} rows"
    return f"mean |error| {errors['mean'] * 100:.1f} %, max {errors['max'] * 100:.1f} %, {count}"


def peer(table: Figures) -> str:
    """Return the peer's errors in words, or "" where there is no peer."""
    if not (other := table["peer"]):
        return ""
    largest = "" if other["max"] is None else f", max {other['max'] * 100:.2f} %"
    return f"; {other['name']}: mean {other['mean'] * 100:.2f} %{largest} ({other['note']})"


def by_family(family: Figures) -> tuple[str, ...]:
    """Return a family's line: a text for each of ``FAMILY``."""
    mean, bias, largest = (family[key] * 100 for key in ("mean", "bias", "max"))
    rank = "" if family["rank"] is None else f"{family['rank']:.2f}"
    of_interval = [
        "" if family[key] is None else f"{family[key] * 100:.{digits}f} %"
        for key, digits in (("coverage", 0), ("width", 1))
    ]
    peers = ", ".join(f"{other['mean'] * 100:.2f} %" for other in family["peers"])
    shares = f"{mean:.1f} %", f"{bias:+.1f} %", f"{largest:.1f} %"
    return (family["name"], str(family["rows"]), *shares, rank, *of_interval, peers)


def markdown(found: Figures, command: str) -> str:
    """Return the tables as a page of Markdown, with the command that made them."""
    out = ["# Predictions against published figures", "", f"Written by `{command}`.", ""]
    if found["steps"]:
        out += [f"All step times: {total(found['steps'])}.", "", READ, ""]
        out += [*_lines(FAMILY, [by_family(row) for row in found["families"]]), ""]
    for table in found["tables"]:
        told = f"{table['source']}. Assumed: {table['assumed']}."
        told += f" Left out: {table['left_out']}." if table["left_out"] else ""
        out += [f"## {table['title']}", "", told, "", *_lines(columns(table), rows(table))]
        said = f"{total(table)}{peer(table)}."
        out += ["", said[0].upper() + said[1:], ""]
    return "\n".join(out).rstrip() + "\n"


def _lines(head: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; every column but the first is aligned right."""
    every = (head, ("---", *["--:"] * (len(head) - 1)), *cells)
    return ["| " + " | ".join(row) + " |" for row in every]


def validate(
    tables: Sequence[str], out: Path | None, plot: Path | None, assumed: Path | None = None
) -> Figures:
    """Predict published figures; write their tables and draw step times where asked for.

    ``assumed`` is the file for what step times owe to each assumed value.
    """
    from traincast.commands.parts.progress import progress
    from validation import run as runner
    from validation import sensitivity

    files = {"--out": out, "--plot": plot, "--assumed": assumed}
    output.apart(files)
    if plot:
        _drawable(tables)
        output.picture(plot)
    for page in filter(None, (out, assumed)):
        output.replaceable(page)
    with progress() as report:
        outcomes = runner.validate(tables, report)
    found = runner.summary(outcomes)
    if plot:
        _draw(outcomes, plot)
    given = [f"{option} {file.as_posix()}" for option, file in files.items() if file]
    command = " ".join(["traincast validate", *tables, *given])
    if out:
        output.write_text(out, markdown(found, command))
    if assumed:
        output.write_text(assumed, sensitivity.markdown(outcomes, command))
    return found


def explain(name: str, names: Sequence[str], plot: Path | None) -> dict[str, Any]:
    """Return what makes up a published step, as JSON holds it; draw it where asked for."""
    from traincast.commands.parts import explaining
    from traincast.commands.parts.progress import progress
    from validation.explain import explain_row

    if plot:
        output.picture(plot)
    with progress() as report:
        row, step = explain_row(name, names, report)
    found = {"row": row.id, **explaining.figures(step, row.measured)}
    if plot:
        explaining.draw(found, plot, row.id)
    return found


def _drawable(names: Sequence[str]) -> None:
    """Raise InputError where these tables, or all, have no step time to draw."""
    from validation import tables

    if not any(row.family for name in names or tables.names() for row in tables.read(name).rows):
        raise InputError(f"--plot draws step times; {', '.join(names)} has none")


def _draw(outcomes: Sequence[TableOutcome], plot: Path) -> None:
    from sim import plots
    from validation.families import grouped

    series = {
        name: [(row.measured, row.predicted) for row in rows]
        for name, rows in sorted(grouped(outcomes).items())
    }
    plots.save(plots.scatter(series), plot)
