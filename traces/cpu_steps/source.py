"""Reads traces of all ranks into a run: ``MODE_summary.json`` and ``MODE_rankR.json.gz``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from schedules.input_error import InputError
from traces.cpu_steps import config, measure, steps, trace
from traces.cpu_steps.run import CpuRun

ENDING = "_summary.json"
_FACTS = ("command", "machine", "device", "allreduce_us", "nparams")


class Measured(NamedTuple):
    """A run, and the parts of its profiled steps of which it was made."""

    run: CpuRun
    parts: Sequence[Sequence[steps.Part]]


def recognises(path: Path) -> bool:
    """Return whether this is a summary of a run with the trace of a rank beside it."""
    return path.name.endswith(ENDING) and _of_rank(path, 0).is_file()


def _of_rank(path: Path, rank: int) -> Path:
    return path.with_name(f"{path.name.removesuffix(ENDING)}_rank{rank}.json.gz")


def read(path: Path) -> Measured:
    """Read a summary and its traces. Raises InputError for what is none."""
    try:
        text = path.read_bytes()
        about = orjson.loads(text)
        ranks, said = about["ranks"], about.get("config") or {}
        if not isinstance(ranks, list) or not ranks or not isinstance(said, dict):
            raise TypeError("ranks or config")
        timed = seconds(ranks)
        mode = str(about["mode"])
        # for each rank: index, bytes, nanoseconds of ready and reduced
        buckets = [[event[1:] for event in rank.get("events") or ()] for rank in ranks]
    except (
        OSError,
        orjson.JSONDecodeError,
        KeyError,
        TypeError,
        IndexError,
        ValueError,
        AttributeError,
    ) as error:
        raise InputError(f"{path} is not a summary of a recorded training: {error!r}") from error
    read_ = [trace.read(_of_rank(path, rank)) for rank in range(len(ranks))]
    digest = hashlib.sha256(text)
    for _, content in read_:
        digest.update(content)
    facts = {key: about[key] for key in _FACTS if key in about}
    traces = [one for one, _ in read_]
    if "seed" in said:
        facts["seed"] = said["seed"]
    if any(buckets):
        facts["buckets"] = buckets
    name = path.name.removesuffix(ENDING)
    return measured(name, mode, traces, said, timed, facts, digest.hexdigest())


def seconds(ranks: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """Return the seconds of each timed step, from the last rank's begin to the last rank's end.

    >>> seconds([{"steps": [[0, 0, 1, 2, 9_000_000]]}, {"steps": [[0, 4_000_000, 5, 6, 7]]}])
    (0.005,)
    """
    by_step = zip(*(rank["steps"] for rank in ranks), strict=True)
    return tuple((max(s[-1] for s in step) - max(s[1] for s in step)) / 1e9 for step in by_step)


def measured(
    name: str,
    mode: str,
    traces: Sequence[trace.RankTrace],
    said: Mapping[str, Any],
    timed: Sequence[float],
    facts: Mapping[str, Any],
    digest: str = "",
) -> Measured:
    """Measure the steps of traces; ``said`` has sizes, or else shapes tell what they can.

    The first ``profiled_warm`` steps, in which the profiler itself warms up, are left out.
    """
    ranks = [one.rank for one in traces]
    if ranks != [*range(traces[0].world)]:
        raise InputError(
            f"traces are of ranks {ranks} of {traces[0].world}; give those of all ranks"
        )
    found = steps.parts(traces, int(said.get("profiled_warm", 0)))
    moved = [one for parts in found for one in measure.moved(parts)]
    shapes = {one.rank: one.shapes for one in traces}
    sizes = said or config.from_trace(traces[0], len(found), mode, moved)
    ran = measure.seen(found, shapes)
    run = CpuRun(
        name=name, mode=mode, world=len(traces), config=dict(sizes), step_s=tuple(timed),
        profiled_s=tuple(max(part.end for part in parts) / 1e9 for parts in found),
        leaves=measure.leaves(ran, sum(map(len, found))), moved=tuple(moved),
        ranks=tuple(steps.rank_step(part) for parts in found for part in parts),
        digest=digest, facts=dict(facts), noise=measure.noise(ran),
    )  # fmt: skip
    return Measured(run, found)
