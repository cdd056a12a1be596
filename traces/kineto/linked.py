"""One rank's rows with all relations that its own file tells: launches, waits, host, steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from traces.kineto import names
from traces.kineto.cpu import edges, on_cpu
from traces.kineto.host import HostOp, host_ops
from traces.kineto.link import launches, messages
from traces.kineto.message import CommunicationRecord
from traces.kineto.names import Action
from traces.kineto.rank import RankRows
from traces.kineto.waits import Edge, Launched, waits

_NO_ACTION = Action("", -1, -1)


@dataclass(frozen=True)
class Linked:
    """A rank's trace; columns have a row per GPU op (``trace.gpu``) or per host op (``host``)."""

    trace: RankRows
    launch: list[int]  # row of ``trace.calls``, -1: launched before the window
    messages: list[tuple[CommunicationRecord, ...]]
    edges: list[Edge]
    host: list[HostOp]
    steps: list[int]  # ProfilerStep numbers in the file
    step_starts: list[int]  # and when each begins, nanoseconds
    gpu_step: list[int]  # row of ``steps``; 0 in a file without steps
    host_step: list[int]
    action: list[Action]
    begun: list[int]  # nanoseconds: when each GPU op was launched, or began
    cpu_only: bool  # there is no GPU: its ops are the CPU's and gloo's

    def kernels(self) -> list[tuple[int, CommunicationRecord]]:
        """Return communication in launch order: (row, message) for each message."""

        def launched(op: int) -> tuple[int, int]:
            row = self.launch[op]
            return (self.trace.calls[row].start if row >= 0 else -1, self.trace.gpu[op].start)

        rows = sorted((op for op, of in enumerate(self.messages) if of), key=launched)
        return [(op, message) for op in rows for message in self.messages[op]]


def linked(trace: RankRows) -> Linked:
    """Find all relations inside one rank."""
    cpu_only = on_cpu(trace)
    launch = launches(trace)
    said = messages(trace, launch)
    launched = Launched(trace, launch)
    relations = edges(trace) if cpu_only else waits(trace, launch, said, launched)
    host = host_ops(trace, launch, launched, relations)
    begun = [
        trace.calls[row].start if row >= 0 else op.start
        for op, row in zip(trace.gpu, launch, strict=True)
    ]
    steps, step_starts, step_at = _steps(trace)
    action_at = _actions(trace)
    return Linked(
        trace,
        launch,
        said,
        relations,
        host,
        steps,
        step_starts,
        [step_at(at) for at in begun],
        [step_at(op.start) for op in host],
        [action_at(at) for at in begun],
        begun,
        cpu_only,
    )


def _steps(trace: RankRows) -> tuple[list[int], list[int], Callable[[int], int]]:
    """Return numbers and starts of the steps, and a function: the row of the last begun (or 0)."""
    found = sorted(
        (mark.start, number)
        for mark in trace.marks
        if (number := names.step_of(mark.name)) is not None
    )
    starts = [start for start, _ in found]
    return [n for _, n in found], starts, lambda at: max(bisect_right(starts, at) - 1, 0)


def _actions(trace: RankRows) -> Callable[[int], Action]:
    """Return a function: the pipeline step around an instant, on whatever thread.

    Backwards run on a thread of their own.
    """
    found = sorted(
        (mark.start, mark.end, of) for mark in trace.marks if (of := names.action(mark.name))
    )
    starts = [start for start, _, _ in found]

    def at(instant: int) -> Action:
        k = bisect_right(starts, instant) - 1
        return found[k][2] if k >= 0 and instant <= found[k][1] else _NO_ACTION

    return at
