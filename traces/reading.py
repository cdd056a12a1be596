"""Reads any recorded run into a :class:`~traces.recording.Recording`, whatever its format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from schedules.input_error import InputError
from traces import kineto
from traces.chakra import write as chakra
from traces.nsys import reader as nsys
from traces.own import recording as own
from traces.recorded import reader as recorded
from traces.recording import Recording, Report, Selection, no_report
from traces.timed_tables import reader as stragglers


class Format(NamedTuple):
    """One format: how to recognise its files by name and first bytes, and how to read them."""

    name: str
    recognises: Callable[[Path], bool]
    read: Callable[[Sequence[Path], Selection, Report], Recording]


FORMATS: tuple[Format, ...] = (
    Format("traincast", own.recognises, own.read),
    Format("recorded", recorded.recognises, recorded.read),
    Format("kineto", kineto.recognises, kineto.read),
    Format("chakra", chakra.recognises, chakra.read),
    Format("nsys", nsys.recognises, nsys.read),
    Format("stragglers", stragglers.recognises, stragglers.read),
)
"""They are asked in this order; the first that recognises every path reads them all."""
NAMED = ("kineto", "nsys")
"""Formats with names of kernels, which rules sort."""


def read(
    paths: Sequence[Path | str] | Path | str,
    selection: Selection = Selection(),  # noqa: B008  (immutable)
    report: Report = no_report,
) -> Recording:
    """Read files, or a folder of them, one per rank.

    Raises InputError for a path that is not there, or that no format recognises.
    """
    given = [paths] if isinstance(paths, str | Path) else paths
    files = [Path(path) for path in given]
    if not files:
        raise InputError("no trace was given; name files, or a folder of them")
    for path in files:
        if not path.exists():
            raise InputError(f"no file or folder {path}")
    for of in FORMATS:
        if all(of.recognises(path) for path in files):
            _selectable(of.name, selection)
            return of.read(files, selection, report)
    inside = sorted(file for path in files if path.is_dir() for file in path.iterdir())
    for of in FORMATS if all(path.is_dir() for path in files) else ():
        if mine := [file for file in inside if of.recognises(file)]:
            _selectable(of.name, selection)
            return of.read(mine, selection, report)
    known = ", ".join(of.name for of in FORMATS)
    raise InputError(f"{files[0]} is not a trace that can be read; formats are {known}")


def _selectable(format_: str, selection: Selection) -> None:
    if selection.annotation is not None and format_ != "kineto":
        raise InputError(
            f"annotations are selected in traces of PyTorch's profiler, but this is {format_}; "
            "select by step, ranks or window"
        )
    if selection.names is not None and format_ not in NAMED:
        raise InputError(
            f"names of kernels are read from traces of {' and '.join(NAMED)}, but this is {format_}"
        )
