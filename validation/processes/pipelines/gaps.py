"""Knows which costs of the host pass before each call of a process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from validation.processes.pipelines.calls import Call, Compute, Post, Wait

HEAD, RESUME, ONWARD, NEXT, ENTER, LOSS, FINISH = (
    "head", "resume", "onward", "next", "enter", "loss", "finish",
)  # fmt: skip
"""Seconds of the thread: from the step's begin to its first call · from a compute to a post ·
from a compute to a compute or wait · from a call to the next · from a wait to its compute · of the
loss · from the last call to the step's end."""


def gaps(calls: Sequence[Call]) -> Iterator[tuple[str, ...]]:
    """Yield the costs that pass before each call of one rank, and last those before the step's end.

    A wait for what was sent costs nothing itself; its costs are due at the next call.
    """
    due: tuple[str, ...] = (HEAD,)
    for call in calls:
        if isinstance(call, Wait) and call.only_sends:
            yield ()
            continue
        yield tuple(_before(due, call))
        if isinstance(call, Compute):
            due = (RESUME, LOSS) if call.loss else (RESUME,)
        else:
            due = (ENTER,) if isinstance(call, Wait) else (NEXT,)
    yield (*(due if due[0] == RESUME else ()), FINISH)


def _before(due: tuple[str, ...], call: Call) -> Iterator[str]:
    for cost in due:
        if cost == RESUME and not isinstance(call, Post):
            yield ONWARD
        elif cost == ENTER and not isinstance(call, Compute):
            yield NEXT
        else:
            yield cost
