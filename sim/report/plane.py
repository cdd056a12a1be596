"""A picture inside a page: step time against memory, each point with its name where one points.

It is SVG of the page's own text, so it needs no script and no network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from matplotlib.ticker import MaxNLocator

from sim import units
from sim.plots.frontier import Point, best_of
from sim.report.panel import short

WIDE, HIGH, LEFT, RIGHT, BOTTOM = 760.0, 360.0, 62.0, 30.0, 40.0
Place = Callable[[float], float]


def plane(points: Sequence[Point], capacity: float | None = None, what: str = "memory") -> str:
    """Return step time against memory as SVG; a line joins the points that no other beats in both.

    ``capacity`` is the memory of a GPU in bytes, at which a dashed line stands.
    """
    if not points:
        return ""
    times = MaxNLocator(6).tick_values(*_around([p.seconds for p in points]))
    roof = [capacity] if capacity else []
    sizes = MaxNLocator(5).tick_values(*_around([p.bytes / 2**30 for p in points]
                                               + [size / 2**30 for size in roof]))  # fmt: skip
    across, up = _scale(times, LEFT, WIDE - RIGHT), _scale(sizes, HIGH - BOTTOM, 12)
    best = best_of(points)
    line = " ".join(f"{across(p.seconds):.1f},{up(p.bytes / 2**30):.1f}" for p in best)
    parts = [
        *_axes(times, sizes, across, up, f"{what}, GiB"),
        *(_limit(up(size / 2**30), size) for size in roof),
        f'<polyline points="{line}" class="best"/>',
        *(_point(p, across, up, p in best) for p in points),
    ]
    label = f"Step time against {what} of {len(points)} layouts"
    return (
        f'<figure class="plane"><svg viewBox="0 0 {WIDE:g} {HIGH:g}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg><figcaption class="note">'
        "Each point is a layout that was simulated; point at it for its name. No other layout "
        "beats those on the line in both time and memory.</figcaption></figure>"
    )


def _around(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or 0.05 * high
    return max(low - room, 0.0), high + room


def _scale(ticks: Sequence[float], begin: float, end: float) -> Place:
    low, high = float(ticks[0]), float(ticks[-1])
    return lambda value: begin + (end - begin) * (value - low) / (high - low)


def _axes(
    times: Sequence[float], sizes: Sequence[float], across: Place, up: Place, name: str
) -> list[str]:
    floor = HIGH - BOTTOM
    out = [f'<path class="grid" d="M{LEFT} {up(s):.1f}H{WIDE - RIGHT}"/>'
           f'<text x="{LEFT - 6}" y="{up(s) + 4:.1f}" text-anchor="end">{s:g}</text>'
           for s in sizes]  # fmt: skip
    out += [f'<path class="grid" d="M{across(t):.1f} {floor}V12"/>'
            f'<text x="{across(t):.1f}" y="{floor + 16}" text-anchor="middle">{t:.4g}</text>'
            for t in times]  # fmt: skip
    middle = (LEFT + WIDE) / 2
    out.append(f'<text x="{middle}" y="{HIGH - 4}" text-anchor="middle">step time, s</text>')
    out.append(f'<text transform="translate(14 {floor / 2}) rotate(-90)" text-anchor="middle">'
               f"{escape(name)}</text>")  # fmt: skip
    return out


def _limit(y: float, size: float) -> str:
    return (
        f'<path class="limit" d="M{LEFT} {y:.1f}H{WIDE - RIGHT}"/><text x="{WIDE - RIGHT - 4}" '
        f'y="{y - 5:.1f}" text-anchor="end">GPU: {units.size(size)}</text>'
    )


def _point(of: Point, across: Place, up: Place, best: bool) -> str:
    said = f"{short(of.name)}: {units.seconds(of.seconds)}, {units.size(of.bytes)}"
    kind = ' class="best"' if best else ""
    return (
        f'<circle cx="{across(of.seconds):.1f}" cy="{up(of.bytes / 2**30):.1f}" r="5" tabindex="0"'
        f'{kind} aria-label="{escape(said)}"><title>{escape(said)}</title></circle>'
    )
