"""Memory over time: one line per rank, and one for the memory of the GPU."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib import colormaps
from matplotlib.figure import Figure

from schedules.input_error import InputError
from sim.memory.curve import Curve
from sim.plots.style import UNITS, figure, unit_for

_LINES = 8  # more would not be told apart


def memory(
    curves: Mapping[int, Curve],
    *,
    capacity: float | None = None,
    besides: float = 0.0,
    title: str = "",
    unit: str = "auto",
) -> Figure:
    """Draw the bytes that ranks hold over time; of more than eight ranks, eight spread over all.

    ``capacity`` is the memory of a GPU in bytes, and ``besides`` what a rank takes of it besides
    its curve: CUDA's context and NCCL's buffers, which are drawn with it. Raises InputError for an
    unknown unit of time.
    """
    if unit != "auto" and unit not in UNITS:
        raise InputError(f"no unit {unit!r}; there are auto, {', '.join(UNITS)}")
    first = min((float(curve.seconds[0]) for curve in curves.values()), default=0.0)
    last = max((float(curve.seconds[-1]) for curve in curves.values()), default=0.0)
    unit = unit_for(last - first) if unit == "auto" else unit
    made = figure(10.0, 4.0)
    axes = made.add_subplot()
    shown = spread(sorted(curves), _LINES)
    for k, rank in enumerate(shown):
        colour = colormaps["viridis"](0.9 * k / max(len(shown) - 1, 1))
        times = curves[rank].seconds * UNITS[unit]
        held = curves[rank].with_more(besides).bytes / 2**30
        axes.step(times, held, where="post", color=colour, lw=1.2, label=f"rank {rank}")
    if capacity is not None:
        axes.axhline(capacity / 2**30, color="black", lw=1.2, ls="--", label="GPU memory")
    axes.set(xlabel=unit, ylabel="GiB, with context and NCCL" if besides else "GiB")
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_ylim(bottom=0.0)
    if first < last:
        axes.set_xlim(first * UNITS[unit], last * UNITS[unit])
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if shown:
        made.legend(loc="outside right upper", frameon=False, fontsize=8)
    return made


def spread(ranks: list[int], most: int) -> list[int]:
    """Return at most ``most`` of the ranks, the first and the last among them.

    >>> spread([0, 1, 2, 3, 4], 3)
    [0, 2, 4]
    """
    if len(ranks) <= most:
        return ranks
    return [ranks[round(k * (len(ranks) - 1) / (most - 1))] for k in range(most)]
