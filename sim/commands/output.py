"""JSON on standard output, and files that commands write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sim.files import replaceable, replacing, writable, write_text

__all__ = ["picture", "print_json", "replaceable", "replacing", "writable", "write_text"]


def picture(path: Path) -> Path:
    """The path; ValueError when no picture could be written there or its ending is unknown."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    known = sorted({*FigureCanvasAgg.get_supported_filetypes()} - {"pgf"})  # which needs TeX
    ending = path.suffix.lstrip(".").lower()
    if ending not in known:
        raise ValueError(
            f"cannot draw {path}: no picture format {ending!r}; there are {', '.join(known)}"
        )
    return replaceable(path)


def print_json(data: object) -> None:
    """Write data as JSON to standard output, NumPy's numbers included."""
    print(json.dumps(data, indent=2, default=_plain))


def _plain(value: Any) -> object:
    return value.tolist() if hasattr(value, "tolist") else str(value)
