"""Predictions against measurements, as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schedules.input_error import InputError
from sim import table as text
from traincast.commands.parts import output
from traincast.commands.parts.tables import show

if TYPE_CHECKING:
    from validation.run import TableOutcome

Figures = Mapping[str, Any]
FAMILY = (
    ("family", "name"), ("rows", "rows"), ("mean", "mean", ".1 %"), ("bias", "bias", "+.1 %"),
    ("max", "max", ".1 %"), ("rank", "rank", ".2f"), ("inside", "coverage", ".0 %"),
    ("width", "width", ".1 %"), ("peer", "peers", lambda of: ", ".join(map(_mean, of))),
)  # fmt: skip
READ = (
    "A family is runs of one framework. Mean and max are of |error|, bias is the mean signed error,"
    " rank is Spearman's correlation of model FLOP/s per GPU, inside is the share of the rows whose"
    " interval of 80 % holds the measured time, width the median of its width over the predicted"
    " time, and peer the mean error of another simulator on the rows that its table names."
)


def show_errors(found: Figures) -> None:
    """Print every table of `validation.run.summary`, its assumptions and its peer's errors."""
    for of in found["tables"]:
        title = f"{of['title']}\n{of['source']}\nassumed: {of['assumed']}"
        title += f"\nleft out: {of['left_out']}" if of["left_out"] else ""
        show(of["rows"], *columns(of), title=title)
        print(f"{total(of)}{peer(of)}\n")
    if found["families"]:
        show(found["families"], *FAMILY, title=READ)
    if found["steps"]:
        print(f"all step times: {total(found['steps'])}")


def columns(of: Figures) -> list[tuple[Any, ...]]:
    """Return the columns of a table, in its unit; those of step times have intervals."""
    unit, scale = of["unit"], of["per_unit"]

    def figure(value: float) -> str:
        return f"{value / scale:.3f}"

    def ends(row: Figures) -> str:
        return " to ".join(map(figure, row.get("interval", ())))

    sides = [(f"{side}, {unit}", side, figure) for side in ("predicted", "measured")]
    more = [("80 % interval", ends)] if any("interval" in row for row in of["rows"]) else []
    return [(of["name"], "id"), *sides, ("error", "error", "+.1 %"), *more]


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


def _mean(peer: Figures) -> str:
    return f"{peer['mean'] * 100:.2f} %"


def markdown(found: Figures, command: str) -> str:
    """Return the tables as a page of Markdown, with the command that made them."""
    out = ["# Predictions against published figures", "", f"Written by `{command}`.", ""]
    if found["steps"]:
        out += [f"All step times: {total(found['steps'])}.", "", READ, ""]
        out += [text.markdown(text.table(found["families"], *FAMILY)), ""]
    for of in found["tables"]:
        told = f"{of['source']}. Assumed: {of['assumed']}."
        told += f" Left out: {of['left_out']}." if of["left_out"] else ""
        rows = text.markdown(text.table(of["rows"], *columns(of)))
        out += [f"## {of['title']}", "", told, "", rows, ""]
        said = f"{total(of)}{peer(of)}."
        out += [said[0].upper() + said[1:], ""]
    return "\n".join(out).rstrip() + "\n"


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
    output.draw(plots.scatter(series), plot)
