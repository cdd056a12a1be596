"""The errors as a page: what ``validation/results.md`` holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def markdown(found: Mapping[str, Any], command: str) -> str:
    """The summary of :func:`validation.run.summary`, and the command that made it."""
    out = ["# Predictions against published runs", "", f"Written by `{command}`.", ""]
    if found["steps"]:
        out += [f"Step times, all tables: {errors(found['steps'])}.", ""]
    for table in found["tables"]:
        out += _table(table)
    return "\n".join(out).rstrip() + "\n"


def errors(total: Mapping[str, Any]) -> str:
    """Mean and largest error in words.

    >>> errors({"mean": 0.02, "max": 0.031, "count": 3})
    'mean |error| 2.0 %, max 3.1 %, 3 rows'
    """
    rows = "1 row" if total["count"] == 1 else f"{total['count']} rows"
    return f"mean |error| {total['mean']:.1%}, max {total['max']:.1%}, {rows}".replace("%", " %")


def peer(table: Mapping[str, Any]) -> str:
    """The peer's error in words, or nothing."""
    if not (other := table["peer"]):
        return ""
    shares = f"mean {other['mean'] * 100:.2f} %, max {other['max'] * 100:.2f} %"
    return f"{other['name']}: {shares} ({other['note']})"


def _table(table: Mapping[str, Any]) -> list[str]:
    unit, scale = table["unit"], table["per_unit"]
    out = [f"## {table['title']}", "", f"{table['source']}. Assumed: {table['assumed']}.", ""]
    out += [f"| {table['name']} | predicted, {unit} | measured, {unit} | error |", "|---|--:|--:|--:|"]
    for row in table["rows"]:
        figures = f"{row['predicted'] / scale:.3f} | {row['measured'] / scale:.3f}"
        out.append(f"| {row['id']} | {figures} | {row['error'] * 100:+.1f} % |")
    said = errors(table)
    out += ["", f"{said[0].upper()}{said[1:]}.", ""]
    if other := peer(table):
        out += [f"{other}.", ""]
    return out
