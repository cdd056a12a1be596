"""The page as one text: it loads nothing and runs only its own script.

Texts of recipes and recordings are escaped. The content security policy allows no network, and only
the one script whose hash it names.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

from sim.plots.style import LINES
from sim.report.merge import MOST
from sim.report.pack import Packer
from sim.report.panel import Panel, pack, short, told_apart
from sim.report.table import html, number, term
from sim.table import Table

SCRIPTS = ("data", "scene", "raster", "draw", "memory", "select", "input", "sort", "main")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
_NARROW = 4  # columns
Figure = tuple[str, float, str, str]
"""Label, value, unit ("s", "bytes", "share" or none) and definition."""


def page(
    title: str,
    panels: Sequence[Panel],
    *,
    figures: Sequence[Figure] = (),
    tables: Sequence[Table] = (),
    notes: Sequence[str] = (),
    pictures: Sequence[str] = (),
    most: int = MOST,
) -> str:
    """Return a page of timelines under each other on one time axis, figures and tables.

    ``notes`` are sentences to read first, such as warnings of a reader; ``pictures`` are HTML that
    stands between figures and timelines. The panels share ``most``
    blocks; timelines of more ops are summarised, and the page says so. Equal input gives equal
    text.
    """
    packer = Packer()
    share = most // max(len(panels), 1)
    data = {"lines": LINES, "panels": [pack(p, packer, share) for p in told_apart(panels)]}
    script = "\n".join(_part(f"{name}.js") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}\n}})();\n'
    return Template(_part("page.html")).substitute(
        title=escape(short(title)),
        policy=_POLICY + f"script-src 'sha256-{_hash(script)}'",
        style=_part("page.css"),
        notes="".join(f'<p class="note">{escape(short(note, 1000))}</p>' for note in notes),
        figures=_figures(figures),
        pictures="".join(pictures),
        tables=_tables([table for table in tables if table.rows]),
        meta=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        columns=packer.text(),
        script=script,
    )


def _figures(figures: Sequence[Figure]) -> str:
    return "".join(
        f'<div class="figure"><dt>{term(label, meaning)}</dt><dd>{escape(number(value, unit))}</dd>'
        "</div>"
        for label, value, unit, meaning in figures
    )


def _tables(tables: Sequence[Table]) -> str:
    """Return the tables as HTML: narrow ones side by side if there is room, wide ones alone.

    Of the two kinds, that of the first table comes first.
    """
    narrow = [table for table in tables if len(table.columns) <= _NARROW]
    wide = "".join(html(table) for table in tables if table not in narrow)
    beside = f'<div class="tables">{"".join(map(html, narrow))}</div>'
    return beside + wide if tables[:1] == narrow[:1] else wide + beside


def _part(name: str) -> str:
    return (files("sim.report") / "web" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
