"""Tables of a page: they can be sorted by every column, and figures have their definition."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from sim.report.panel import short
from sim.table import Table

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (0.0, "ns"))
_SIZES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (0, "B"))


class Term(NamedTuple):
    """The text of a cell, and what it means."""

    text: str
    meaning: str = ""


def html(table: Table) -> str:
    """Return the table as HTML, with every text escaped; a column's form is the unit of figures."""
    heads = "".join(
        f'<th scope="col" aria-sort="none"><button type="button" class="sort"{_title(column.note)}>'
        f"{escape(short(column.name))}</button></th>"
        for column in table.columns
    )
    forms = [str(column.form) for column in table.columns]
    rows = "".join(f"<tr>{''.join(map(_cell, row, forms))}</tr>" for row in table.values())
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<section class="table"><h3>{escape(table.title)}</h3>{note}<div class="wide" tabindex="0"'
        f' role="region" aria-label="{escape(table.title)}"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def term(text: str, definition: str = "") -> str:
    """Return a text, as HTML, whose definition shows on hover, focus and touch."""
    if not definition:
        return f"<span>{escape(short(text))}</span>"
    return (
        f'<span class="term" tabindex="0" data-note="{escape(definition)}" '
        f'aria-description="{escape(definition)}">{escape(short(text))}</span>'
    )


def _title(note: str) -> str:
    return f' data-note="{escape(note)}" aria-description="{escape(note)}"' if note else ""


def _cell(value: Any, unit: str) -> str:
    if value is None:
        return '<td class="number" data-value="">-</td>'
    if isinstance(value, str | Term):
        return f"<td>{term(*value) if isinstance(value, Term) else term(value)}</td>"
    return f'<td class="number" data-value="{value!r}">{escape(number(value, unit))}</td>'


def number(value: float, unit: str = "") -> str:
    """Return a figure with its unit, in four digits.

    >>> number(7.6e-6, "share"), number(0.0, "share")
    ('< 0.01 %', '0 %')
    >>> number(0.01234, "rank-s"), number(2**30, "bytes"), number(0.1234, "share"), number(12345)
    ('12.34 rank-ms', '1 GiB', '12.34 %', '12,345')
    """
    if unit in ("s", "rank-s"):
        return _scaled(value, _UNITS, 1e-9).replace(" ", f" {unit.removesuffix('s')}")
    if unit == "bytes":
        return _scaled(value, _SIZES, 1.0)
    if unit == "share":
        return "< 0.01 %" if 0 < value < 5e-5 else f"{100 * value:.4g} %"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if value < 1e4 else (
        f"{value:,.0f}"
    )  # fmt: skip


def _scaled(value: float, steps: Sequence[tuple[float, str]], least: float) -> str:
    if not value:
        return f"0 {steps[-1][1] if least == 1.0 else 's'}"
    size, name = next((s, n) for s, n in steps if abs(value) >= s)
    return f"{value / (size or least):.4g} {name}"
