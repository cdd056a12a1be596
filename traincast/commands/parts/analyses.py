"""Analyses by name: loaded before anything is simulated, then shown as tables or as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Any

import numpy as np

from sim.analysis import Analysis, analyses
from sim.graph import Graph
from sim.late import console, pd
from traincast.commands.parts.tables import say, show_list

Columns = dict[str, list[str]]

ROWS = 12
"""Rows of a table, unless all are asked for."""
LONG = 60
"""Letters of a cell from which its column is printed as sentences below the table."""
FEW = 6
"""Rows up to which a wide table is turned on its side."""
OPS = {"op", "ops", "leaves", "joins", "after", "ends", "behind"}
"""Columns that hold numbers of ops, which a table calls by name."""


def chosen(names: Sequence[str] | None) -> list[Analysis]:
    """Find the analyses of these names.

    Raises InputError for one that there is not, or that needs what no run has.
    """
    every = analyses() if names else {}
    found = [every[name] for name in dict.fromkeys(names or ())]
    for one in found:
        one.check()
    return found


def run(some: Sequence[Analysis], of: Any) -> dict[str, Any]:
    """Return what each says of a result or a recording, by its name."""
    return {one.name: one(of) for one in some}


def plain(found: Any) -> Any:
    """Return the same as lists, dicts and numbers, which JSON can hold."""
    if hasattr(found, "to_pandas"):
        found = found.to_pandas()
    if isinstance(found, pd.DataFrame):
        return plain(found.to_dict("records"))
    if (columns := _fields(found)) is not None:
        return {str(key): plain(value) for key, value in columns.items()}
    if isinstance(found, list | tuple):
        return [plain(value) for value in found]
    return found.tolist() if hasattr(found, "tolist") else found


def show(some: Sequence[Analysis], found: Mapping[str, Any], graph: Graph, most: int) -> None:
    """Print what each found, under its sentence; tables are cut to ``most`` rows."""
    for one in some:
        say(f"\n{one.name}: {one.about}", style="bold")
        tables = frames(found[one.name])
        for frame in filter(len, tables):
            _show(frame, graph, most)
        if not any(map(len, tables)):
            say("nothing of the kind here")


def frames(found: Any) -> list[pd.DataFrame]:
    """Return what an analysis found as tables.

    Of a record: single figures, then columns of one length beside each other, then each mapping.
    """
    if hasattr(found, "to_pandas"):
        return [found.to_pandas()]
    if isinstance(found, pd.DataFrame):
        return [found]
    if isinstance(found, list):
        return [pd.DataFrame([one if (of := _fields(one)) is None else of for one in found])]
    record = _fields(found)
    return _of_record({"value": found} if record is None else record)


def _of_record(record: Mapping[Any, Any]) -> list[pd.DataFrame]:
    figures: dict[str, Any] = {}
    columns: dict[str, np.ndarray] = {}
    tables: list[pd.DataFrame] = []
    for key, value in record.items():
        if isinstance(value, np.ndarray):
            columns[str(key)] = value
        elif not isinstance(value, Mapping):
            figures[str(key)] = value
        elif any(isinstance(one, np.ndarray) for one in value.values()):
            columns |= {f"{key} {name}": column for name, column in value.items()}
        else:
            tables.append(pd.DataFrame({key: list(value), " ": list(value.values())}, dtype=object))
    sizes = dict.fromkeys(len(column) for column in columns.values())
    beside = [{k: c for k, c in columns.items() if len(c) == size} for size in sizes]
    first = pd.DataFrame({"figure": list(figures), "value": list(figures.values())}, dtype=object)
    return [first, *map(pd.DataFrame, beside), *tables]


def _fields(of: Any) -> Mapping[Any, Any] | None:
    """Return the fields of a mapping, a named tuple or a dataclass; None of anything else."""
    if isinstance(of, Mapping):
        return of
    if hasattr(of, "_asdict"):
        return dict(of._asdict())
    if is_dataclass(of):
        return {field.name: getattr(of, field.name) for field in fields(of)}
    return None


def _show(frame: pd.DataFrame, graph: Graph, most: int) -> None:
    """Print a table; one too wide for the screen stands on its side, or is printed in parts."""
    columns = _columns(frame.head(most), graph)
    long = {name: of for name, of in columns.items() if max(map(len, of)) > LONG}
    tables = _fitting({name: of for name, of in columns.items() if name not in long})
    if len(tables) > 1 and len(frame) <= FEW and frame.iloc[:, 0].is_unique:
        tables = [_on_its_side(columns)]
    for table in tables:
        show_list([*table], [*zip(*table.values(), strict=True)])
    for sentence, times in Counter(chain.from_iterable(long.values())).items():
        say(f"  {sentence}" + (f" ({times} rows say so)" if times > 1 else ""))
    if len(frame) > most:
        say(f"rows left out: {len(frame) - most:,}; --json prints all")


def _columns(frame: pd.DataFrame, graph: Graph) -> Columns:
    """Return the text of every cell, by column."""
    known = "name" in frame.columns  # what the ops are called
    first = frame.iloc[:, 0].tolist()
    return {
        str(name): [
            _cell(value, graph if not known and _are_ops(value, {str(name), label}) else None)
            for label, value in zip(map(str, first), frame[name].tolist(), strict=True)
        ]
        for name in frame.columns
    }


def _are_ops(value: Any, called: set[str]) -> bool:
    """Return whether a cell holds numbers of ops; one number called "ops" counts them.

    >>> _are_ops([3, 4], {"ops"}), _are_ops(3, {"op"}), _are_ops(3, {"ops"})
    (True, True, False)
    """
    counts = isinstance(value, int | np.integer)
    return bool((OPS - {"ops"} if counts else OPS) & called)


def _fitting(columns: Columns) -> list[Columns]:
    """Return the columns in tables that fit on the screen; all begin with the first column."""
    wide = {name: max(map(len, [name, *cells])) + 3 for name, cells in columns.items()}
    first, *others = columns
    tables: list[Columns] = []
    left = 0
    for name in others:
        if not tables or wide[name] > left:
            tables.append({first: columns[first]})
            left = console.Console().width - 1 - wide[first]
        tables[-1][name] = columns[name]
        left -= wide[name]
    return tables or [columns]


def _on_its_side(columns: Columns) -> Columns:
    """Return a row for each column but the first, whose cells become headings.

    >>> _on_its_side({"rank": ["0", "8"], "waits": ["1", "2"], "last": ["3", "4"]})
    {'rank': ['waits', 'last'], '0': ['1', '3'], '8': ['2', '4']}
    """
    first, *others = columns
    heads = {head: [columns[name][k] for name in others] for k, head in enumerate(columns[first])}
    return {first: others, **heads}


def _cell(value: Any, graph: Graph | None) -> str:
    """Return the text of a cell; numbers of ops become names where their graph is given.

    >>> _cell(0.123456, None), _cell(1234567, None), _cell(None, None)
    ('0.1235', '1,234,567', '-')
    """
    if isinstance(value, np.generic):
        value = value.item()
    match value:
        case None:
            return "-"
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}" if graph is None else _op(value, graph)
        case float():
            return f"{value:.4g}"
        case [first, *_, last] if graph is not None:
            return f"{len(value):,} ops, {_op(first, graph)} to {_op(last, graph)}"
        case [first] if graph is not None:
            return _op(first, graph)
        case list() | tuple():
            return f"{', '.join(map(str, value[:4]))}{', ...' * (len(value) > 4)}" or "-"
    return str(value)


def _op(number: int, graph: Graph) -> str:
    if not 0 <= number < len(graph):
        return "-" if number < 0 else f"{number:,}"
    return f"{graph.names[graph.name[number]]} (rank {graph.rank[number]})"
