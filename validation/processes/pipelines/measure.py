"""Measures costs of a process: each recorded call beside the one that torch's code makes there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from schedules.csv import Move
from schedules.input_error import InputError
from traces.recorded.run import COMPUTE, POST, WAIT, RecordedRun, StepCalls
from traces.recorded.run import Call as Recorded
from validation.processes.pipelines.alone import Cores
from validation.processes.pipelines.calls import Call, Compute, Post, Wait
from validation.processes.pipelines.costs import Costs, Quantiles, Size, spread
from validation.processes.pipelines.gaps import (
    ENTER,
    FINISH,
    HEAD,
    LOSS,
    NEXT,
    ONWARD,
    RESUME,
    gaps,
)
from validation.processes.pipelines.predict import bare
from validation.processes.pipelines.priced import Workload
from validation.processes.pipelines.workload import load, model

Samples = defaultdict[str, list[float]]
KINDS = {Compute: COMPUTE, Post: POST, Wait: WAIT}
WORK = 0.3e-3  # seconds of a core in a timed compute; what ours show on two cores of a server
HUNG = 1.5  # a step over so many medians was held up by the machine and says nothing about others
LONG = 1e-3  # a receive that takes so many seconds to post tells nothing about its message
DIRECT = 1e-4  # at most so many seconds lie between two calls with none between them


class MessageEnd(NamedTuple):
    """One end of a message in a recorded step."""

    start: float
    end: float


def fit(runs: Sequence[RecordedRun], name: str, sizes: Sequence[Size] = ()) -> Costs:
    """Return the costs that these runs show. Raises InputError if calls are not torch's."""
    if len({(run.message_bytes(), *model(run).items()) for run in runs}) > 1:
        raise InputError(
            "costs are fitted to runs with messages of one size and stages of one kind"
        )
    found: Samples = defaultdict(list)
    work = _work(runs)
    for run in runs:
        what = load(run)
        for number, step in enumerate(run.steps):
            check(what, step, f"{run.path}, step {number}")
            _collect(what, step, Cores(what, step, work), found)
    return Costs(
        name, _spreads(found), tuple(sizes), runs[0].message_bytes(),
        {run.path.name: run.digest for run in runs}, _busier(runs), _stretches(runs), work,
        model(runs[0]),
    )  # fmt: skip


def _work(runs: Sequence[RecordedRun]) -> float:
    """Return the seconds of a core that a timed compute takes; ours, if none are recorded."""
    calls = (call for run in runs for step in run.steps for row in step.calls for call in row)
    timed = all(run.settings.get("mode") == "virtual" for run in runs)
    found = [call.cpu for call in calls if call.cpu is not None and timed]
    return float(np.median(found)) if found else WORK if timed else 0.0


def _busier(runs: Sequence[RecordedRun]) -> float:
    """Return what all timed steps cost beyond their stages, over what the traced ones did."""
    timed = traced = 0.0
    for run in runs:
        alone, hung = bare(load(run)), HUNG * float(np.median(run.seconds))
        timed += float(np.mean([one for one in run.seconds if one < hung])) - alone
        traced += float(np.mean([one.seconds for one in run.steps if one.seconds < hung])) - alone
    return timed / traced if min(timed, traced) > 0 else 1.0


def _stretches(runs: Sequence[RecordedRun]) -> tuple[float, ...]:
    """Return each timed step's cost beyond its stages over its run's mean, without hung ones."""
    out = list[float]()
    for run in runs:
        hung = HUNG * float(np.median(run.seconds))
        own = np.array([one for one in run.seconds if one < hung]) - bare(load(run))
        out += (own / own.mean()).tolist() if own.min() > 0 else []
    return tuple(out)


def check(what: Workload, step: StepCalls, where: str) -> None:
    """Raise InputError unless the step's calls are those of torch's code."""
    for rank, (calls, recorded) in enumerate(zip(what.program, step.calls, strict=True)):
        should, are = (
            [KINDS[type(call)] for call in calls],
            [call.kind for call in recorded],
        )
        if should != are:
            pairs = enumerate(zip(should, are, strict=False))
            shorter = min(len(should), len(are))
            at = next((k for k, (a, b) in pairs if a != b), shorter)
            raise InputError(
                f"{where}, rank {rank}: call {at} is not the one that torch makes there "
                f"({len(are)} calls, {len(should)} expected), so nothing is known of its costs"
            )


def _collect(what: Workload, step: StepCalls, cores: Cores, found: Samples) -> None:
    """Add a step's costs, without those after a wait for a core, which is modelled."""
    posted: dict[Move, MessageEnd] = {}
    for rank, (calls, recorded) in enumerate(zip(what.program, step.calls, strict=True)):
        for key, seconds in _gaps(calls, recorded, step, rank):
            found[key].append(seconds)
        for call, ran in zip(calls, recorded, strict=True):
            if isinstance(call, Compute):
                key, seconds = _computed(what, call, ran.end - ran.start)
                if key != "over" or cores.free(rank, ran.end - seconds):
                    found[key].append(seconds)
            elif isinstance(call, Post):
                for key, seconds in _split(call, ran, posted):
                    found[key].append(seconds)
    for rank, (calls, recorded) in enumerate(zip(what.program, step.calls, strict=True)):
        for call, ran in zip(calls, recorded, strict=True):
            if isinstance(call, Wait) and not call.only_sends:
                for key, seconds, came in _arrival(call, ran, posted):
                    if cores.free(rank, came):
                        found[key].append(seconds)


def _gaps(
    calls: Sequence[Call], recorded: Sequence[Recorded], step: StepCalls, rank: int
) -> Iterator[tuple[str, float]]:
    """Yield the seconds between calls by the costs in them; waits for what was sent are apart."""
    before = step.begin
    spent = 0.0
    starts = [*(call.start for call in recorded), step.ended[rank]]
    for k, (costs, start) in enumerate(zip(gaps(calls), starts, strict=True)):
        spent += max(start - before, 0.0)
        if costs:
            yield "+".join(costs), spent
            spent = 0.0
        if k < len(recorded):
            before = recorded[k].end


def _computed(what: Workload, call: Compute, seconds: float) -> tuple[str, float]:
    if what.stages.seconds is None:
        return call.step.kind, seconds / what.stages.layers
    return "over", seconds - what.stages.nominal(call)


def _split(
    call: Post, ran: Recorded, posted: dict[Move, MessageEnd]
) -> Iterator[tuple[str, float]]:
    """Yield when each end was posted: in equal parts of a call that posts several."""
    edges = np.linspace(ran.start, ran.end, len(call.ends) + 1).tolist()
    for end, (start, stop) in zip(call.ends, pairwise(edges), strict=True):
        posted[end] = MessageEnd(start, stop)
        if len(call.ends) == 1:
            yield "isend" if end.end == "SEND" else "irecv", stop - start


def _arrival(
    call: Wait, ran: Recorded, posted: dict[Move, MessageEnd]
) -> Iterator[tuple[str, float, float]]:
    """Yield the seconds from when both ends were posted until the last message of a wait came.

    And when the call was over that posted the later of them, since a thread then takes it in.

    Only where the wait saw it come: it had begun before the send, or right behind the receive. And
    one that ends with a send, which its receiver took late, says nothing of what it received.
    """

    def ready(end: Move) -> float:
        return max(posted[end].start, posted[end.other].start)

    last = max(call.ends, key=ready)
    if last.end == "SEND":
        return
    if posted[last].start < posted[last.other].start:
        if ran.start <= ready(last):
            yield "early", ran.end - ready(last), posted[last.other].end
    elif ran.start - posted[last].end <= DIRECT and ran.start - ready(last) <= LONG:
        yield "late", ran.end - ready(last), posted[last].end


def _spreads(found: Samples) -> dict[str, Quantiles]:
    """Return distributions; a cost seen only together with another is that less its mean."""
    out = {key: spread(found[key]) for key in found if "+" not in key}
    for whole, known in (
        (f"{ONWARD}+{LOSS}", ONWARD),
        (f"{RESUME}+{LOSS}", RESUME),
    ):
        if LOSS not in out and known in out and found.get(whole):
            out[LOSS] = _less(found[whole], out[known].mean)
    if FINISH not in out and found.get(f"{RESUME}+{FINISH}"):
        out[FINISH] = _less(found[f"{RESUME}+{FINISH}"], out[RESUME].mean)
    if ONWARD not in out and LOSS in out and found.get(f"{ONWARD}+{LOSS}"):
        out[ONWARD] = _less(found[f"{ONWARD}+{LOSS}"], out[LOSS].mean)
    for key in (HEAD, RESUME, ONWARD, NEXT, ENTER, FINISH, LOSS, "early", "late", "isend", "irecv"):
        out.setdefault(key, Quantiles())
    return out


def _less(samples: Sequence[float], mean: float) -> Quantiles:
    return spread(np.asarray(samples) - mean)
