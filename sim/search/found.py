"""The answer of a search: the best layouts, the frontier, and how sure it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sim import units
from sim.html import Shown, table
from sim.search.searching import BEST

Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Found(Shown):
    """What a search has found.

    ``rows`` has every layout and every group of layouts that was looked at, the best first; the
    columns are those of the file (docs/search.md). ``gap`` is the share by which a layout that was
    not simulated might at most be better than the best; 0: none can be.
    """

    rows: Sequence[Row]
    keys: tuple[str, ...]
    objective: str
    unit: str
    gap: float

    @property
    def simulated(self) -> list[Row]:
        """The rows that were simulated and fit, the best first."""
        return [row for row in self.rows if row["outcome"] == "simulated"]

    @property
    def best(self) -> list[Row]:
        """The ten best rows."""
        return self.simulated[:BEST]

    @property
    def frontier(self) -> list[Row]:
        """The simulated rows with less memory than all faster ones; of equal ones the first."""
        out = list[Row]()
        for row in sorted(self.simulated, key=lambda row: (row["step_time_s"], row["peak_bytes"])):
            if not out or row["peak_bytes"] < out[-1]["peak_bytes"]:
                out.append(row)
        return out

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows of each outcome."""
        return dict(Counter(row["outcome"] for row in self.rows))

    def overrides(self, row: Row) -> dict[str, Any]:
        """Return the values of a row's keys, which ``tc.run`` takes over the recipe."""
        return {key: row[key] for key in self.keys if key in row}

    def name(self, row: Row) -> str:
        """Return a layout in a line: what differs from a plain one."""
        return name(self.overrides(row))

    def _repr_html_(self) -> str:
        lines = [(self.name(row), units.seconds(row["step_time_s"])) for row in self.best]
        return table(f"{len(self.rows)} layouts, gap {self.gap:.1%}", lines)


DEGREES = ("tp", "cp", "pp", "dp", "ep", "etp")


def name(layout: Mapping[str, Any]) -> str:
    """Return a layout in a line, without degrees of 1 and what is off.

    >>> name({"parallelism.tp": 8, "parallelism.cp": 1, "training.recompute": "full"})
    'tp 8, recompute full'
    """
    plain = layout.get("parallelism.pp") == 1 and layout.get("schedule.name") == "one_f_one_b"
    said = {key.rpartition(".")[2]: value for key, value in layout.items() if key != SPLIT_LAYERS}
    said = {key: value for key, value in said.items() if not (key == "name" and plain)}
    return ", ".join(
        f"{WORDS.get(key, key)} {_said(value)}".strip()
        for key, value in said.items()
        if value not in (None, "none") and value is not False and key != "gpus"
        if not (key in DEGREES and value == 1) and not (key == "zero" and not value)
    )


SPLIT_LAYERS = "schedule.layers_per_stage"
WORDS = {"name": "", "micro_batch": "micro-batch", "fsdp": ""}


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("kind", value))
    return "" if value is True else str(value)
