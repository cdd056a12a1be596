"""Reads published figures, and the recipe that predicts each.

``published/*.toml`` holds one table of a paper per file: the figures in the paper's unit, where
they stand, what the paper leaves open and is assumed here, what of it is left out and why, and a
peer's error on the same rows. Step times belong to a family: runs of one framework.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from schedules.input_error import InputError

FOLDER = Path(__file__).parent / "published"
RECIPES = Path(__file__).parent / "recipes"

UNITS = {"s": 1.0, "ms": 1e-3, "GiB": 2.0**30, "%": 1e-2}
"""Units of the tables, in seconds or bytes; errors of shares are differences in points."""


class Row(NamedTuple):
    """One published figure, in SI units, and the recipe (with values over it) that predicts it."""

    id: str
    recipe: Path
    overrides: Mapping[str, object]
    figure: str
    measured: float
    family: str = ""  # of step times: runs of one framework, summed up together


class Peer(NamedTuple):
    """Another simulator's errors on these rows, as shares of the measured."""

    name: str
    mean: float
    note: str
    max: float | None = None  # not always stated


class PublishedTable(NamedTuple):
    """A table of a paper; ``unit`` is the one in which it is shown."""

    name: str
    title: str
    source: str
    assumed: str
    unit: str
    rows: tuple[Row, ...]
    peer: Peer | None
    left_out: str = ""  # rows of the source that are not here, and why


def names() -> list[str]:
    """List the tables there are."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read(name: str) -> PublishedTable:
    """Read a table by its name.

    Raises InputError, naming those there are, for another name.

    >>> read("korthikanti2022_table5").rows[0].measured
    1.42
    """
    if name not in names():
        raise InputError(f"no table {name!r} of published figures; there are {', '.join(names())}")
    data = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    peer = Peer(**data["peer"]) if "peer" in data else None
    rows = tuple(_row(row, data) for row in data["rows"])
    known = {key: data[key] for key in ("title", "source", "assumed", "unit")}
    return PublishedTable(name, **known, rows=rows, peer=peer, left_out=data.get("left_out", ""))


def _row(row: Mapping[str, Any], table: Mapping[str, Any]) -> Row:
    figure = row.get("figure") or table["figure"]
    return Row(
        id=row["id"],
        recipe=RECIPES / f"{row['recipe']}.toml",
        overrides=row.get("set", {}),
        figure=figure,
        measured=float(row["value"]) * UNITS[table["unit"]],
        family=row.get("family") or table.get("family", "") if figure == "step" else "",
    )
