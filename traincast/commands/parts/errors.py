"""Predictions against measurements, as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from traincast.commands.parts import output
from traincast.commands.parts.tables import show

Figures = Mapping[str, Any]


def show_errors(found: Figures) -> None:
    """Print every table of `validation.run.summary`, its assumptions and its peer's errors."""
    for table in found["tables"]:
        title = f"{table['title']}\n{table['source']}\nassumed: {table['assumed']}"
        unit = table["unit"]
        show(rows(table), table["name"], f"predicted, {unit}", f"measured, {unit}", "error",
             title=title)  # fmt: skip
        print(f"{total(table)}{peer(table)}\n")
    if found["steps"]:
        print(f"all step times: {total(found['steps'])}")


def rows(table: Figures) -> list[tuple[str, str, str, str]]:
    """Return a table's rows in its unit."""
    scale = table["per_unit"]
    return [
        (
            row["id"],
            f"{row['predicted'] / scale:.3f}",
            f"{row['measured'] / scale:.3f}",
            f"{row['error'] * 100:+.1f} %",
        )
        for row in table["rows"]
    ]


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
    shares = f"mean {other['mean'] * 100:.2f} %, max {other['max'] * 100:.2f} %"
    return f"; {other['name']}: {shares} ({other['note']})"


def markdown(found: Figures, command: str) -> str:
    """Return the tables as a page of Markdown, with the command that made them."""
    out = ["# Predictions against published figures", "", f"Written by `{command}`.", ""]
    if found["steps"]:
        out += [f"All step times: {total(found['steps'])}.", ""]
    for table in found["tables"]:
        unit = table["unit"]
        head = (table["name"], f"predicted, {unit}", f"measured, {unit}", "error")
        out += [f"## {table['title']}", "", f"{table['source']}. Assumed: {table['assumed']}.", ""]
        out += [
            "| " + " | ".join(row) + " |" for row in (head, ("---", *["--:"] * 3), *rows(table))
        ]
        said = f"{total(table)}{peer(table)}."
        out += ["", said[0].upper() + said[1:], ""]
    return "\n".join(out).rstrip() + "\n"


def validate(tables: Sequence[str], out: Path | None) -> Figures:
    """Predict published figures, and write the table where asked for."""
    from traincast.commands.parts.progress import progress
    from validation import run as runner

    if out:
        output.replaceable(out)
    with progress() as report:
        found = runner.summary(runner.validate(tables, report))
    if out:
        command = " ".join(["traincast validate", *tables, "--out", out.as_posix()])
        output.write_text(out, markdown(found, command))
    return found
