"""A table: columns that say how their values are written, over rows of plain data.

The same table is written for a terminal (:mod:`traincast.commands.parts.tables`), in Markdown
(:func:`markdown`) and on a page (:mod:`sim.report.table`); JSON has the rows as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from sim import units

Form = str | Callable[[Any], str]
FORMS: Mapping[str, Callable[[Any], str]] = {
    "s": units.seconds,
    "ms": lambda value: f"{value * 1e3:.1f}",
    "bytes": units.size,
}
"""By unit of a value: how it is written. Of "ms" the column's name says the unit."""


class Column(NamedTuple):
    """A column of a table.

    ``of`` is the key or attribute at which a row has its value ("a/b" is b of what a is), a place,
    or a function of the row; without it the value at the column's own place is taken. ``form`` is a
    unit of :data:`FORMS`, a format such as ",.1f" or "+.1 %", or a function. ``left`` is the
    alignment, by default that of the first column alone. A page shows ``note`` where a reader
    points at the name.
    """

    name: str
    of: Any = None
    form: Form = ""
    left: bool | None = None
    note: str = ""


def written(value: Any, form: Form = "") -> str:
    """Return a value as a :class:`Column` of this form has it; None is nothing, a list a range.

    >>> [written(0.1249, form) for form in ("s", "ms", ".2f", "+.1 %")]
    ['124.9 ms', '124.9', '0.12', '+12.5 %']
    >>> written([1.0, 1.5], "ms")
    '1000.0 to 1500.0'
    """
    if value is None:
        return ""
    if isinstance(form, str):
        if isinstance(value, str):
            return value
        if isinstance(value, list | tuple):
            return " to ".join(written(one, form) for one in value)
        form = FORMS.get(form, form)
    if callable(form):
        return form(value)
    if form.endswith(" %"):
        return format(value, form.replace(" ", "")).replace("%", " %")
    return format(value, form)


class Table(NamedTuple):
    """Rows under columns, made by :func:`table`; ``note`` is a sentence about all of them."""

    columns: Sequence[Column]
    rows: Sequence[Any]
    title: str = ""
    note: str = ""

    def values(self) -> list[list[Any]]:
        """Return the values of each row, in the order of the columns."""
        return [[_value(column.of, row) for column in self.columns] for row in self.rows]

    def cells(self) -> list[list[str]]:
        """Return the text of each cell."""
        pairs = (zip(self.columns, row, strict=True) for row in self.values())
        return [[written(value, column.form) for column, value in row] for row in pairs]


def table(
    rows: Iterable[Any],
    *columns: str | tuple[Any, ...],
    title: str = "",
    note: str = "",
    left: bool = False,
) -> Table:
    """Return a table of these rows.

    A column is its name, or the beginning of a :class:`Column`. With ``left`` all columns are
    aligned left.

    >>> table([{"rank": 0, "took": 0.25}], ("rank", "rank"), ("took, ms", "took", "ms")).cells()
    [['0', '250.0']]
    """
    every = [Column(of) if isinstance(of, str) else Column(*of) for of in columns]
    placed = [one._replace(of=k) if one.of is None else one for k, one in enumerate(every)]
    aligned = [
        one._replace(left=left or not k) if one.left is None else one
        for k, one in enumerate(placed)
    ]
    return Table(aligned, [*rows], title, note)


def markdown(of: Table) -> str:
    """Return the table in Markdown.

    >>> print(markdown(table([("a|b", 2, None)], "name", "number", "note")))
    | name | number | note |
    |---|--:|--:|
    | a\\|b | 2 | |
    """
    rule = "".join("---|" if column.left else "--:|" for column in of.columns)
    first, *others = map(_line, [[column.name for column in of.columns], *of.cells()])
    return "\n".join([first, f"|{rule}", *others])


def _line(cells: Iterable[str]) -> str:
    texts = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return "".join(f"| {text} " if text else "| " for text in texts) + "|"


def _value(of: Any, row: Any) -> Any:
    if callable(of):
        return of(row)
    whole = not isinstance(of, str) or (isinstance(row, Mapping) and of in row)
    return row[of] if whole else reduce(_part, of.split("/"), row)


def _part(of: Any, key: str) -> Any:
    return of[key] if isinstance(of, Mapping) else getattr(of, key)
