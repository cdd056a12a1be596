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
from validation.processes.pipelines.calls import Call, Compute, Post, Wait
from validation.processes.pipelines.costs import ARRIVAL, Costs, Size, spread
from validation.processes.pipelines.gaps import LOSS, ONWARD, RESUME, gaps
from validation.processes.pipelines.graph import OVER, RECEIVE, SEND
from validation.processes.pipelines.predict import bare
from validation.processes.pipelines.workload import Workload, load, model

Samples = defaultdict[str, list[float]]
KINDS = {Compute: COMPUTE, Post: POST, Wait: WAIT}
WORK = 0.3e-3  # seconds of a core in a timed compute; what ours show on two cores of a server
HUNG = 1.5  # a step over so many medians was held up by the machine and says nothing about others
LONG = 1e-3  # a receive that takes so many seconds to post tells nothing about its message
QUEUED = 5.0
"""A compute with real-time priority that wakes so many medians late waited for a core behind other
threads of its own run, which is modelled; without, other processes may have held it up. From 3 to 8
medians, mean errors of the recorded runs change by 0.1 points."""
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
    for run in runs:
        what = load(run)
        for number, step in enumerate(run.steps):
            check(what, step, f"{run.path}, step {number}")
            _collect(what, step, found)
    spreads = {key: spread(some) for key, some in _usual(found, runs).items()}
    sources = {run.path.name: run.digest for run in runs}
    size = runs[0].message_bytes()
    return Costs(
        name, spreads, tuple(sizes), size, sources, _busier(runs), _work(runs), model(runs[0])
    )


def _usual(found: Samples, runs: Sequence[RecordedRun]) -> Samples:
    """Leave out what waited for a core, and take costs that were not seen to be like others."""
    if OVER in found and all(run.settings.get("rt") for run in runs):
        most = QUEUED * float(np.median(found[OVER]))
        found[OVER] = [one for one in found[OVER] if one <= most]
    for unseen in (LOSS, ONWARD):
        found[unseen] = found[unseen] or found[RESUME]
    return found


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


def _collect(what: Workload, step: StepCalls, found: Samples) -> None:
    """Add a step's costs."""
    posted: dict[Move, MessageEnd] = {}
    waits: list[tuple[Wait, Recorded]] = []
    for rank, (calls, recorded) in enumerate(zip(what.program, step.calls, strict=True)):
        for key, seconds in _gaps(calls, recorded, step, rank):
            found[key].append(seconds)
        for call, ran in zip(calls, recorded, strict=True):
            if isinstance(call, Post):
                for key, seconds in _split(call, ran, posted):
                    found[key].append(seconds)
            elif isinstance(call, Wait):
                waits.append((call, ran))
            elif what.stages.seconds is None:
                found[call.step.kind].append((ran.end - ran.start) / what.stages.layers)
            else:
                found[OVER].append(ran.end - ran.start - what.stages.nominal(call))
    for call, ran in waits:
        start = None if call.only_sends else _ready(call, ran, posted)
        if start is not None:
            found[ARRIVAL].append(ran.end - start)


def _gaps(
    calls: Sequence[Call], recorded: Sequence[Recorded], step: StepCalls, rank: int
) -> Iterator[tuple[str, float]]:
    """Yield the cost between calls, and its seconds; waits for what was sent are apart."""
    starts = [*(call.start for call in recorded), step.ended[rank]]
    befores = [step.begin, *(call.end for call in recorded)]
    spent = 0.0
    for cost, before, start in zip(gaps(calls), befores, starts, strict=True):
        spent += max(start - before, 0.0)
        if cost:
            yield cost, spent
            spent = 0.0


def _split(
    call: Post, ran: Recorded, posted: dict[Move, MessageEnd]
) -> Iterator[tuple[str, float]]:
    """Yield when each end was posted: in equal parts of a call that posts several."""
    edges = np.linspace(ran.start, ran.end, len(call.ends) + 1).tolist()
    for end, (start, stop) in zip(call.ends, pairwise(edges), strict=True):
        posted[end] = MessageEnd(start, stop)
        if len(call.ends) == 1:
            yield SEND if end.end == "SEND" else RECEIVE, stop - start


def _ready(call: Wait, ran: Recorded, posted: dict[Move, MessageEnd]) -> float | None:
    """Return when both ends of the last message of a wait were posted, if the wait saw it come.

    It had begun before the send, or right behind the receive. And one that ends with a send, which
    its receiver took late, says nothing of what it received.
    """

    def ready(end: Move) -> float:
        return max(posted[end].start, posted[end.other].start)

    last = max(call.ends, key=ready)
    mine = posted[last]
    early = mine.start < posted[last.other].start and ran.start <= ready(last)
    behind = ran.start - mine.end <= DIRECT and ran.start - ready(last) <= LONG
    late = mine.start >= posted[last.other].start and behind
    return ready(last) if last.end == "RECV" and (early or late) else None
