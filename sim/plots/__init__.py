"""Pictures of timelines, memory and machines; they draw results and compute none.

Every function returns a matplotlib ``Figure`` of its own. Nothing uses ``pyplot``, a window or
global state, so that many can be drawn at once, and on machines without a display.
"""

from __future__ import annotations

import gzip
import io
import re
from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from schedules.input_error import InputError
from sim.plots.causes import causes
from sim.plots.compare import timelines
from sim.plots.curves import curves
from sim.plots.frontier import Point, frontier
from sim.plots.goodput import goodput
from sim.plots.heat import heat
from sim.plots.memory import memory
from sim.plots.roofline import roofline
from sim.plots.scatter import scatter
from sim.plots.shares import shares
from sim.plots.timeline import timeline
from sim.plots.topology import topology
from sim.plots.waterfall import waterfall

__all__ = [
    "Point",
    "causes",
    "curves",
    "frontier",
    "goodput",
    "heat",
    "memory",
    "roofline",
    "save",
    "scatter",
    "shares",
    "timeline",
    "timelines",
    "topology",
    "waterfall",
]


SALT = {"svg.hashsalt": "traincast"}  # what matplotlib names parts of an SVG by, else at random
STAMPS = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""By format, the entries in which matplotlib would write its version and the time."""
_COMMENTS = re.compile(rb"^%%(Title|CreationDate): .*\n", re.MULTILINE)


def save(figure: Figure, path: Path | str, dpi: float = 150) -> None:
    """Write a figure to a file whose ending says the format; equal figures give equal bytes.

    Raises InputError for an ending that matplotlib does not know.
    """
    ending = Path(path).suffix.lstrip(".").lower()
    known = FigureCanvasAgg.get_supported_filetypes()
    if ending not in known:
        raise InputError(f"no picture format {ending!r}; there are {', '.join(sorted(known))}")
    drawn, drawing = io.BytesIO(), "svg" if ending == "svgz" else ending
    with rc_context(SALT):  # type: ignore[arg-type]
        figure.savefig(drawn, dpi=dpi, format=drawing, metadata=STAMPS.get(drawing))
    Path(path).write_bytes(_plain(drawn.getvalue(), ending))


def _plain(picture: bytes, ending: str) -> bytes:
    """Return the picture, compressed if its format is, without the time that matplotlib writes."""
    if ending == "svgz":
        return gzip.compress(picture, mtime=0)
    return _COMMENTS.sub(b"", picture) if ending in ("ps", "eps") else picture
