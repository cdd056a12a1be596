"""Pictures of timelines, memory and machines: what was measured, drawn; they compute no results.

Every function returns a matplotlib ``Figure`` that belongs to nobody else: no ``pyplot``, no
window, no global state, so many may be drawn at once and on machines without a display.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sim.plots.compare import Point, frontier, timelines
from sim.plots.memory import memory
from sim.plots.timeline import timeline
from sim.plots.topology import topology

__all__ = ["Point", "frontier", "memory", "save", "timeline", "timelines", "topology"]


def save(figure: Figure, path: Path | str, dpi: float = 150) -> None:
    """Write a figure to a file whose ending says the format; the same figure, the same bytes.

    Raises ValueError for an ending that matplotlib does not know.
    """
    stamps = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    ending = Path(path).suffix.lstrip(".").lower()
    known = FigureCanvasAgg.get_supported_filetypes()
    if ending not in known:
        raise ValueError(f"no picture format {ending!r}; there are {', '.join(sorted(known))}")
    figure.savefig(path, dpi=dpi, metadata=stamps.get(ending))
