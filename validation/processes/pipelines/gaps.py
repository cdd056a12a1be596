"""Knows which cost of the host passes before each call of a process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from validation.processes.pipelines.calls import Call, Compute, Post, Wait

HEAD, RESUME, ONWARD, LOSS, NEXT, ENTER, FINISH = (
    "head", "resume", "onward", "loss", "next", "enter", "finish",
)  # fmt: skip
"""Seconds of the thread: from the step's begin to its first call · from a compute to a post · from
a compute to a compute or wait · from a compute with its loss to any call · from a post to the next
call · from a wait to the next call · from the last call to the step's end."""


def gaps(calls: Sequence[Call]) -> Iterator[str]:
    """Yield the cost that passes before each call of one rank, and last that before its end.

    A wait for what was sent costs nothing itself (""); its cost is due at the next call.
    """
    last: Call | None = None
    for call in calls:
        if isinstance(call, Wait) and call.only_sends:
            yield ""
        else:
            yield _between(last, call)
            last = call
    yield FINISH


def _between(last: Call | None, call: Call) -> str:
    if isinstance(last, Compute):
        return LOSS if last.loss else RESUME if isinstance(call, Post) else ONWARD
    return HEAD if last is None else ENTER if isinstance(last, Wait) else NEXT
