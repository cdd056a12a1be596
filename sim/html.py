"""Small HTML tables that show in a notebook what an object is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

MOST_ROWS = 12
_CELL = "text-align:left;padding:1px 12px 1px 0"


class Shown:
    """What a prompt completes of an object: the names without an underscore."""

    def __dir__(self) -> list[str]:
        """List what a user may ask of it."""
        return [name for name in object.__dir__(self) if not name.startswith("_")]


def table(
    title: str, rows: Iterable[Sequence[object]], head: Sequence[str] = (), most: int = MOST_ROWS
) -> str:
    """Return a titled HTML table.

    All text is escaped, and rows beyond ``most`` are only counted.

    >>> table("a < b", [("x", 1)])  # doctest: +ELLIPSIS
    '<div><b>a &lt; b</b><table>...<td style="...">x</td>...'
    """
    every = list(rows)
    shown = "".join(_row(row, "td") for row in every[:most])
    if len(every) > most:
        shown += _row((f"... {len(every) - most:,} more",), "td")
    top = _row(head, "th") if head else ""
    return f"<div><b>{escape(title)}</b><table>{top}{shown}</table></div>"


def _row(cells: Sequence[object], tag: str) -> str:
    inner = "".join(f'<{tag} style="{_CELL}">{escape(str(cell))}</{tag}>' for cell in cells)
    return f"<tr>{inner}</tr>"
