"""Reads the configuration of a recorded run as the calls that it makes, and no measurements."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from math import fsum
from typing import NamedTuple

import schedules
from schedules import Plan, Step, flat
from schedules.csv import plan_of
from schedules.input_error import InputError
from traces.recorded.run import RecordedRun
from traces.schedule_csv import lowered
from validation.processes.pipelines.calls import LOOPS, Compute, Program, loop, runtime

CORES = 2  # of the machine of recordings that do not say (see :mod:`.costs` for their names)
OURS = {
    "GPipe": "gpipe",
    "1F1B": "one_f_one_b",
    "LoopedBFS": "looped_bfs",
    "Interleaved1F1B": "interleaved_1f1b",
    "InterleavedZeroBubble": "interleaved_zero_bubble",
}
"""torch's names of the schedules that have the same order here."""


class Stages(NamedTuple):
    """The computes of a run."""

    seconds: Mapping[str, float] | None  # of F, I and W, of timed stages; None: real layers
    layers: int = 1  # of a stage with real layers
    overlap: float = 1.0  # of a pair: the time of a member over that of the step alone

    def nominal(self, call: Compute) -> float:
        """Return the seconds that a timed compute is meant to take."""
        assert self.seconds is not None
        kinds = "IW" if call.step.kind == "B" else call.step.kind
        return fsum(self.seconds[kind] for kind in kinds) * (self.overlap if call.paired else 1.0)


class Workload(NamedTuple):
    """What processes run, whatever it costs them."""

    program: Program
    stages: Stages
    bytes: float  # of a message
    cores: int = 0  # that all processes share; 0: as many as they want


def plan(run: RecordedRun) -> Plan:
    """Return the order that the run was given: our schedule's of its name, or the file's.

    Raises InputError where there is neither.
    """
    name = str(run.settings.get("schedule"))
    if name in OURS:
        options = {"chunks": int(run.settings["v"])}
        ours = OURS[name]
        given = {key: of for key, of in options.items() if key in schedules.options(ours)}
        return schedules.load(ours)(run.ranks, int(run.settings["M"]), **given)
    if run.orders:
        return plan_of(run.orders)
    raise InputError(
        f"{run.path} was run by {name!r} and holds no orders; there are {', '.join(OURS)}"
    )


KNOWN = {
    "world", "schedule", "plan", "runtime", "M", "v", "mode", "rt", "nice", "T", "overlap", "d",
    "seq", "mb", "layers", "heads", "dtype", "seed", "warm", "steps", "keep",
}  # fmt: skip
"""Settings that are read here, or that change no step."""


def load(run: RecordedRun) -> Workload:
    """Return what the processes of a run do. Raises InputError for an unknown setting."""
    for key in sorted(run.settings.keys() - KNOWN):
        near = difflib.get_close_matches(key, KNOWN, 1)
        hint = f"; did you mean {near[0]}?" if near else ", and what it changes is not either"
        raise InputError(f"{run.path}: the setting {key} is not known{hint}")
    return Workload(_program(run), _stages(run), run.message_bytes(), _cores(run))


def _cores(run: RecordedRun) -> int:
    """Return the cores that timed stages share; 0 for real layers."""
    return (run.cores or CORES) if run.settings.get("mode") == "virtual" else 0


def _program(run: RecordedRun) -> Program:
    name = str(run.settings.get("schedule"))
    if run.orders:
        return runtime(run.orders)
    return loop(name, plan(run)) if name in LOOPS else runtime(lowered(plan(run)))


def _stages(run: RecordedRun) -> Stages:
    if run.settings.get("mode") == "virtual":
        seconds = {kind: float(run.settings["T"][kind]) for kind in "FIW"}
        return Stages(seconds, overlap=float(run.settings.get("overlap", 1.0)))
    return Stages(None, int(run.settings.get("layers", 1)))


def model(run: RecordedRun) -> dict[str, int]:
    """Return what decides how long a real layer takes; nothing for timed stages."""
    if run.settings.get("mode") == "virtual":
        return {}
    return {key: int(run.settings[key]) for key in ("d", "seq", "mb", "heads")}


def violations(run: RecordedRun) -> list[str]:
    """Return where the order that ran is not the plan: the first place per step and rank."""
    planned = flat(plan(run))
    out = []
    for number, step in enumerate(run.steps):
        for rank, calls in enumerate(step.calls):
            ran = [call.name for call in calls if call.kind == "compute"]
            if found := _first_other(planned[rank], ran):
                out.append(f"step {number}, rank {rank}, position {found}")
    return out


def _first_other(planned: list[Step], ran: list[str]) -> str:
    should = [str(step) for step in planned]
    if should == ran:
        return ""
    at = next((k for k, pair in enumerate(zip(should, ran, strict=False)) if pair[0] != pair[1]),
              min(len(should), len(ran)))  # fmt: skip
    names = [order[at] if at < len(order) else "nothing" for order in (ran, should)]
    return f"{at}: {names[0]} ran where the plan has {names[1]}"
