"""Measures kernels and transfers for calibration: sizes and seconds, on any device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from schedules.input_error import InputError
from traces.record import load, machine, workers

BETWEEN = ("p2p", "all_reduce")
"""Parts that need several ranks."""
WITHIN = ("launch", "memory", "elementwise", "attention", "block", "gemm")
"""Parts that one rank measures."""
PARTS = (*BETWEEN, *WITHIN, *load.PARTS)
SECONDS = 60.0  # for all parts that are not under load

Found = dict[str, Any]
Each = Callable[[Found, str, int, int], object]
"""A function of what there is so far, what was measured last, how much is done, of how much."""


def record(
    parts: Sequence[str], ranks: int = 1, seconds: float | None = None, timeout: float = 600.0,
    begun: Found | None = None, each: Each = lambda *_: None,
) -> Found:  # fmt: skip
    """Return rows of each part, measured for about ``seconds`` in all.

    They are those of rank 0, and of all ranks for parts under load (:mod:`traces.record.load`),
    whose cases ``each`` hears of one by one. What ``begun`` names in its list ``done`` is not
    measured again. Raises InputError for an unknown part, or a worker that failed.
    """
    _check(parts, ranks, seconds)
    machine.require_torch()
    jobs = _jobs(parts, ranks, seconds)
    found = begun or {}
    ready = found.setdefault("done", [])
    left = [name for name in jobs if name not in ready]

    def done(at: int, results: Sequence[Any]) -> None:
        _merge(found, jobs[left[at]], results)
        ready.append(left[at])
        each(found, left[at], len(ready), len(jobs))

    each(found, "measuring", len(ready), len(jobs))
    if left:
        workers.run([jobs[name] for name in left], ranks, timeout, each=done)
    return {key: value for key, value in found.items() if key != "done"}


def _check(parts: Sequence[str], ranks: int, seconds: float | None) -> None:
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise InputError(f"record sweep knows {', '.join(PARTS)}, not {unknown[0]!r}")
    if ranks < 2 and (alone := [part for part in parts if part in BETWEEN]):
        raise InputError(f"{alone[0]} is measured between ranks; give --ranks 2, or more")
    if seconds is not None and not 0 < seconds < float("inf"):
        raise InputError(f"--seconds {seconds:g} must be a time above 0")


def _jobs(parts: Sequence[str], ranks: int, seconds: float | None) -> dict[str, workers.Task]:
    """Return a task for all parts that are not under load, and one per case of the others."""
    plain = [part for part in parts if part not in load.PARTS]
    heavy = [part for part in load.PARTS if part in parts]
    shared = SECONDS if seconds is None else seconds * len(plain) / len(parts)
    rest = None if seconds is None else seconds - shared
    out: dict[str, workers.Task] = {}
    if plain:
        out["kernels"] = {"task": "sweep_run", "parts": plain, "seconds": shared}
    for case in load.cases(heavy, ranks, rest):
        out[f"{case.part}: {case.name}"] = {"task": "load_run", **case._asdict()}
    return out


def _merge(found: Found, task: workers.Task, results: Sequence[Found]) -> None:
    """Add what the ranks measured in one task; ``skipped`` says what is not there, and why."""
    first = results[0]
    if (known := found.get("gpu", first["gpu"])) != first["gpu"]:
        raise InputError(f"the sweep was begun on {known}, and this is {first['gpu']}")
    found |= {key: first[key] for key in ("device", "gpu")}
    skipped = dict[str, str]()
    if task["task"] == "sweep_run":
        found |= {part: first[part] for part in task["parts"]}
        skipped |= first.get("skipped", {})
    for one in results if task["task"] == "load_run" else ():
        rows = found.setdefault(task["part"], [])
        rows += [one["row"]] if "row" in one else []
        skipped |= {f"{task['part']}: {task['name']}": one["skipped"]} if "skipped" in one else {}
        skipped |= {"clock and power": one["unread"]} if "unread" in one else {}
    if skipped:
        found["skipped"] = found.get("skipped", {}) | skipped
