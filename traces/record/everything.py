"""Records all that a machine can show, in one go and within a budget of seconds.

Each section may fail without harm to the others; the result file is there from the start and is
written again after each, so it says what was done whatever happens.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from schedules.input_error import InputError
from sim.files import replacing, writable
from traces.record import machine
from traces.record.plan import guarded
from traces.record.recording_parts import RecordingPart, sections

LEAST = 15.0  # seconds that starting a worker needs
RESERVE = 0.05  # share of the budget for ending workers, for the file and for loading ourselves


class Ended(BaseException):
    """The process was told to end, by a signal of that number."""


def record(folder: Path, budget: float, command: str, gpus: int | None = None) -> Path:
    """Record every section; return the path of the result, which says what was skipped and why.

    ``gpus`` is how many there are; unless given it is found out. When told to end (SIGTERM or
    Ctrl-C), it stops its workers, writes that down and raises :class:`Ended` or KeyboardInterrupt.
    """
    deadline = time.monotonic() + budget * (1.0 - RESERVE)
    machine.require_torch()
    writable(folder).mkdir(parents=True, exist_ok=True)
    path = folder / "result.json"
    result: dict[str, Any] = {
        "command": command, "machine": machine.facts(), "gpus": gpus, "budget_s": budget,
        "seed": 0, "sections": {}, "seconds": {}, "skipped": [],
    }  # fmt: skip
    _write(path, result)
    with _ending():
        if gpus is None:
            result |= (found := machine.gpus(min(120.0, budget / 4)))
            gpus = len(found["gpus"])
        to_do = sections(folder, command, gpus)
        for at, section in enumerate(to_do):
            begin = time.monotonic()
            try:
                _one(section, (deadline - begin) * section.share, result)
                result["seconds"][section.name] = round(time.monotonic() - begin, 1)
                _write(path, result)
            except (Ended, KeyboardInterrupt) as end:
                why = f"told to end ({end or 'Ctrl-C'})"
                result["skipped"] += [{"section": one.name, "why": why} for one in to_do[at:]]
                _write(path, result)
                raise
    return path


def _one(section: RecordingPart, seconds: float, result: dict[str, Any]) -> None:
    """Record a section into the result, or why it is not there."""
    skipped = dict[str, str]()
    with guarded(skipped, section.name):
        if seconds < LEAST:
            raise InputError(f"{max(seconds, 0.0):.0f} s of the budget are left for it")
        made = result["sections"][section.name] = section.make(seconds)
        found = made.pop("skipped", {})
        parts = found if isinstance(found, Mapping) else {"": found}
        skipped |= {f"{section.name}: {k}" if k else section.name: why for k, why in parts.items()}
    result["skipped"] += [{"section": name, "why": why} for name, why in skipped.items()]


@contextmanager
def _ending() -> Iterator[None]:
    """Raise :class:`Ended` on SIGTERM, which would leave the result as it was."""
    if threading.current_thread() is not threading.main_thread():  # only that one takes signals
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # once is enough, and the result is being written
        raise Ended(signal.Signals(number).name)

    was = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, was)


def _write(path: Path, result: Mapping[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(result, indent=1))


def files(result: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of the files that sections wrote, beside the result.

    >>> files({"sections": {"kernels": {"gemm": []}, "stage": {"runs": [{"file": "a.json.gz"}]}}})
    ['a.json.gz']
    """
    made = result["sections"].values()
    return [one["file"] for some in made for one in some.get("runs", ())]
