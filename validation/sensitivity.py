"""What do the step times of each family owe to what is assumed of machines?

Each value is taken to either end of its range, alone, and the step follows to first order from the
seconds on its critical path (:mod:`sim.whatif.interval`).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum

from sim.machine.assumed import affects, ranges
from sim.table import markdown as lines_of
from sim.table import table
from validation.families import grouped
from validation.run import ComparedFigure, TableOutcome

Ends = tuple[float, float]
HEAD = """# What is assumed, and what step times owe to it

Written by `{command}`.

`sim/machine/assumed.toml` has each value with its range and its source. Here is by how much the
predicted step times of a family change, in the mean, if the value lies at the low end of its range,
and if at the high end, in per cent of the step: "+2.5, -1.4" are steps that take 2.5 % longer at
the low end and 1.4 % less at the high end. That is to first order, from the seconds on the critical
path. Where a cell is empty, no price of the family follows from the value; an empty row is a value
that no published run needs. What hangs on each value stands below the table.
"""


def sensitivities(outcomes: Iterable[TableOutcome]) -> dict[str, dict[str, Ends]]:
    """Return by assumed value and family the mean change of the step at both ends, as shares."""
    families = grouped(outcomes)
    return {
        name: {of: found for of, rows in families.items() if (found := _mean(name, rows))}
        for name in ranges()
    }


def _mean(name: str, rows: Iterable[ComparedFigure]) -> Ends | None:
    moves = [row.moves for row in rows]
    if not any(name in of for of in moves):
        return None
    low, high = zip(*(of.get(name, (0.0, 0.0)) for of in moves), strict=True)
    return fsum(low) / len(moves), fsum(high) / len(moves)


def markdown(outcomes: Iterable[TableOutcome], command: str) -> str:
    """Return the page: a row for each value, a column for each family."""
    found = sensitivities(outcomes)
    families = sorted({of for by_family in found.values() for of in by_family})
    lines = lines_of(
        table(
            [{"name": name, **ranges()[name]._asdict(), **of} for name, of in found.items()],
            ("value", lambda row: f"`{row['name']}`"),
            ("assumed", "value", "g"),
            ("range", lambda row: (row["low"], row["high"]), "g"),
            *((name, lambda row, name=name: row.get(name), _change) for name in families),
        )
    )
    said = [f"- `{name}`: {what}." for name, what in affects().items()]
    return "\n".join([HEAD.format(command=command), lines, "", *said]) + "\n"


def _change(ends: Ends) -> str:
    return ", ".join(_signed(100 * end) for end in ends)


def _signed(percent: float) -> str:
    """Return a change in per cent; one that rounds to nothing has no sign.

    >>> _signed(-0.04), _signed(0.25)
    ('0', '+0.2')
    """
    text = f"{percent:+.1f}"
    return "0" if float(text) == 0 else text
