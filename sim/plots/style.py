"""The style of pictures: colours that stay apart in grey, units of the time axis, empty figures."""

from __future__ import annotations

import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from PIL import Image  # which matplotlib itself needs

PHASES = {
    "F": ("forward", "#a9cbee"),
    "R": ("recomputed forward", "#f3dd8b"),
    "I": ("input gradient", "#e8853d"),
    "B": ("backward", "#d0681c"),
    "W": ("weight gradient", "#1f7a58"),
    "O": ("optimizer", "#5b2a86"),
    "": ("other", "#8c8c8c"),
}
"""By phase, its name and colour. They become darker in this order, so that grey print can tell them
apart."""
DARK = ("B", "W", "O", "")  # numbers on these are white
TRANSFERS = {
    "tp": "#7a9a01",
    "cp": "#00a0a0",
    "ep": "#8a5cc0",
    "etp": "#c9b3e6",
    "pp": "#1f6fb4",
    "dp": "#c23b5e",
    "edp": "#e9a13b",
    "efsdp": "#b5741a",
    "shard": "#e58aa0",
    "replicate": "#7d1f3a",
    "twin": "#d98cb0",
    "embedding": "#b07a2a",
    "copy": "#c9a227",
    "model": "#444444",
}
"""Dimensions of communication in the order of their tracks."""
OTHER = "#a0a0a0"
"""The colour of dimensions that are not among these."""
WAITS = 0.55
"""How much of a track's colour is left where a transfer only waits for a peer."""
COMPUTE, IDLE = "#a9cbee", "white"
"""The colours of computing and of nothing where phases are not told apart."""
KERNELS = {
    "gemm": "#a9cbee",
    "grouped_gemm": "#4f8fd0",
    "attention": "#e8853d",
    "attention_backward": "#a8480f",
    "softmax": "#f7c9a3",
    "norm": "#1f7a58",
    "elementwise": "#f3dd8b",
    "embedding": "#8c8c8c",
    "cross_entropy": "#b48ad6",
    "optimizer": "#5b2a86",
}
"""Kinds of kernels in the order of stacking; pictures of points also give each a mark."""
LOST = {
    "waiting": "#cfcfcf",
    "dependency": "#a8d5bf",
    "straggler": "#f2b8c6",
    "launch": "#f3dd8b",
    "lag": "#e7e2d6",
    "copy": "#c9a227",
    "warm_up": "white",
    "drain": "white",
}
"""The causes of time in which neither a kernel runs nor a transfer moves data."""
LINES = ("#1f6fb4", "#e8853d", "#1f7a58", "#c23b5e", "#5b2a86", "#444444")
"""The colours of curves, in turn."""
UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6}
_NOTEBOOK, _COLOURS = 75, 64  # dots per inch in notebooks, whose files should stay small


def unit_for(seconds: float) -> str:
    """Return the unit in which a duration has few digits.

    >>> unit_for(13.7), unit_for(0.2), unit_for(2e-5)
    ('s', 'ms', 'us')
    """
    return "s" if seconds >= 2 else "ms" if seconds >= 2e-3 else "us"


def pale(colour: str) -> str:
    """Return the tint of a track's colour for time in which a transfer waits for a peer.

    >>> pale("#000000")
    '#737373'
    """
    red, green, blue = (1.0 - WAITS * (1.0 - part) for part in to_rgb(colour))
    return to_hex((red, green, blue))


class Picture(Figure):
    """A figure that a notebook shows as it is, in the same bytes each time."""

    def _repr_png_(self) -> bytes:
        drawn, small = io.BytesIO(), io.BytesIO()
        self.savefig(drawn, dpi=_NOTEBOOK, format="png")
        picture = Image.open(drawn).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
        picture.save(small, "png", optimize=True)
        return small.getvalue()


def figure(width: float, height: float) -> Figure:
    """Return an empty figure of ``width`` by ``height`` inches."""
    made = Picture(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made
