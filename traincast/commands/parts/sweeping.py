"""Shows and draws what ``traincast sweep`` found: a row for each configuration, and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from schedules.input_error import InputError
from traincast.commands.parts import tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
MOST = 40  # rows that are printed
_FIGURES = (
    ("step, s", "step_time_s", ".4g"), ("MFU", "mfu", ".1%"), ("idle", "idle_share_of_step", ".1%"),
    ("peak", "peak_bytes", "bytes"), ("fits", lambda row: "yes" if row["fits"] else "no"),
)  # fmt: skip


def show(rows: Rows, keys: Sequence[str]) -> None:
    """Print a row for each configuration, and why some have no figures."""
    names = [key.rpartition(".")[2] if _told_apart(key, keys) else key for key in keys]
    ran = [row for row in rows if row["refused"] is None]
    varied = zip(names, keys, [str] * len(keys), strict=True)
    if ran:
        tables.show(ran[:MOST], *varied, *_FIGURES)
    if len(ran) > MOST:
        tables.say(f"and {len(ran) - MOST} more, which the file holds")
    named = {" ".join(f"{key}={row[key]}" for key in keys): row for row in rows}
    tables.show_uncalibrated(
        {name: row["uncalibrated"] for name, row in named.items() if row["refused"] is None}
    )
    for name, row in named.items():
        if row["refused"] is not None:
            tables.say(f"{name}: {row['refused']}")


def axis(vary: Mapping[str, Sequence[object]], x: str | None) -> str:
    """Return the key along whose values curves are drawn: ``x``, or the first that has numbers."""
    numbers = [key for key, of in vary.items() if all(_number(value) for value in of)]
    if x is not None and x not in numbers:
        some = ", ".join(numbers) or "none"
        raise InputError(f"--x takes a key of --vary that has numbers: {some}")
    if not numbers:
        raise InputError("--plot draws step time against numbers, and no key of --vary has any")
    return x or numbers[0]


def draw(rows: Rows, keys: Sequence[str], x: str) -> Figure:
    """Draw step time along ``x``, with a line for each combination of the other keys."""
    from sim import plots

    others = [key for key in keys if key != x]
    lines: dict[str, dict[float, float]] = {}
    for row in rows:
        if row["refused"] is None:
            name = ", ".join(
                str(row[key]) if key == "schedule.name" else f"{key.rpartition('.')[2]} {row[key]}"
                for key in others
            )
            lines.setdefault(name, {})[float(row[x])] = row["step_time_s"]
    ordered = {name: dict(sorted(line.items())) for name, line in lines.items()}
    return plots.curves(ordered, x=x, y="step time, s")


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _told_apart(key: str, keys: Sequence[str]) -> bool:
    last = key.rpartition(".")[2]
    return sum(other.rpartition(".")[2] == last for other in keys) == 1
