"""Writes JSON to standard output, and the files of commands."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schedules.input_error import InputError
from sim.files import replaceable, replacing, together, writable, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.timeline import Timeline
    from validation.processes.compared import Compared

__all__ = [
    "apart",
    "beside",
    "draw",
    "picture",
    "print_json",
    "replaceable",
    "replacing",
    "together",
    "writable",
    "write_text",
]


def picture(path: Path) -> Path:
    """Return the path; raise InputError when no picture can be written there.

    Its ending must be that of a known picture format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    known = sorted({*FigureCanvasAgg.get_supported_filetypes()} - {"pgf"})  # pgf needs TeX
    ending = path.suffix.lstrip(".").lower()
    if ending not in known:
        raise InputError(
            f"cannot draw {path}: no picture format {ending!r}; there are {', '.join(known)}"
        )
    return replaceable(path)


def apart(written: Mapping[str, Path | None], read: Path | None = None) -> None:
    """Raise InputError when two options name one file, or one names the file that is read."""
    files = {option: os.path.realpath(path) for option, path in written.items() if path}
    for option, path in files.items():
        if read and path == os.path.realpath(read):
            raise InputError(f"{option} would replace {read}, which is read; name another file")
    if len({*files.values()}) < len(files):
        one = next(path for path in written.values() if path)
        raise InputError(f"{' and '.join(files)} both name {one}; give two files")


def print_json(data: object) -> None:
    """Write data as JSON to standard output, NumPy's numbers included."""
    print(json.dumps(data, indent=2, default=_plain))


def _plain(value: Any) -> object:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def beside(
    compared: Sequence[Compared], both: Callable[[Any], dict[str, Timeline]], path: Path,
    more: str = "",
) -> None:  # fmt: skip
    """Draw one recorded run beside its prediction; ``more`` ends the title.

    Raises InputError for several runs, or none.
    """
    from sim import plots

    if len(compared) != 1:
        raise InputError(f"--plot draws one run beside its prediction; {len(compared)} were named")
    (of,) = compared
    title = f"{of.name}: recorded {of.measured * 1e3:.1f} ms, predicted {of.error:+.1%}{more}"
    draw(plots.timelines(both(of), title=title), path)


def draw(picture: Figure, path: Path) -> Path:
    """Write a picture, or nothing where that fails; return its path."""
    from sim import plots

    with replacing(path) as temporary:
        plots.save(picture, temporary)
    return path
