"""What is the same of every recorded run that is compared with its prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import traces
from schedules.input_error import InputError
from sim.timeline import Timeline
from validation.processes.predict import Prediction

OURS = Path(traces.__file__).parent / "data"
Progress = Callable[[str, int, int], None]
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, eq=False)
class Compared:
    """One run, predicted and recorded."""

    name: str
    timed: Sequence[float]  # seconds of all its timed steps
    predicted: Prediction
    violations: Sequence[str]  # where the order that ran is not the planned one

    @property
    def measured(self) -> float:
        """The median of all timed steps, seconds."""
        return float(np.median(self.timed))

    @property
    def error(self) -> float:
        """The signed error, as a share of the measured step."""
        return self.predicted.seconds / self.measured - 1.0

    def figures(self) -> dict[str, Any]:
        """Return plain data of the step; seconds and shares."""
        return {
            "id": self.name,
            "steps": len(self.timed),
            "spread": float(np.std(self.timed) / np.mean(self.timed)),
            "measured": self.measured,
            "predicted": self.predicted.seconds,
            "error": self.error,
            "order_violations": list(self.violations),
        }

    def beside(self, recorded: Timeline, begin: float) -> dict[str, Timeline]:
        """Return a recorded step from when it began, and the prediction with mean costs."""
        shown = Timeline(recorded.graph, recorded.start - begin, recorded.end - begin)
        return {"recorded": shown, "predicted": self.predicted.timeline}


def as_data(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Return named tuples as plain data."""
    return [row._asdict() for row in rows]


def each(
    wanted: Sequence[tuple[str, T]], compare: Callable[[T], U],
    progress: Progress | None, skipped: list[str] | None,
) -> list[U]:  # fmt: skip
    """Compare each of these, by name.

    The sentence of one that cannot be compared is added to ``skipped``. It is raised as InputError
    if there is no such list, or if none can be compared.
    """
    out = list[U]()
    for number, (name, one) in enumerate(wanted):
        if progress:
            progress(name, number, len(wanted))
        try:
            out.append(compare(one))
        except InputError as error:
            if skipped is None or len(wanted) == 1:
                raise
            skipped.append(str(error))
    if skipped and not out:
        raise InputError(skipped[0])
    return out
