"""Writes down what a rank does in torch's pipeline runtime: computes, messages, actions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from traces.record.clock import HostClock

_NOTHING = nullcontext()


def _unmarked(name: str) -> AbstractContextManager[Any]:
    """Return no mark of an action, as no profiler runs."""
    return _NOTHING


class Log:
    """Events of one step: category, name, begin, end, and further facts.

    ``marked`` names actions for a profiler; it is torch's record_function while one runs.
    """

    def __init__(self, clock: HostClock, cpu_time: bool) -> None:
        self.clock, self.cpu_time = clock, cpu_time
        self.events: list[tuple[str, str, Any, Any, dict[str, Any]]] = []
        self.overlapping = False  # inside a block of a forward and a backward
        self.marked: Callable[[str], AbstractContextManager[Any]] = _unmarked

    @contextmanager
    def compute(self, stage: int, kind: str, microbatch: int) -> Iterator[None]:
        """Log one step of the plan."""
        facts: dict[str, Any] = {"kind": kind, "stage": stage, "mb": microbatch}
        begin, ran = self.clock.now(), time.thread_time_ns()
        yield
        if self.cpu_time:
            facts["cpu_us"] = (time.thread_time_ns() - ran) / 1e3
        self._add("compute", f"{stage}{kind}{microbatch}", begin, facts)

    @contextmanager
    def action(self, name: str) -> Iterator[None]:
        """Log one action of the runtime, messages included."""
        begin = self.clock.now()
        self.overlapping = name.endswith("OVERLAP_F_B")
        with self.marked(name):  # in place of torch's mark, not beside it: both would slow the host
            yield
        self.overlapping = False
        if name.startswith("PP:"):
            self._add("action", name, begin, {})

    def post(self, real: Any, ops: list[Any], *args: Any, **kwargs: Any) -> Any:
        """Post sends and receives."""
        if not ops:
            return real(ops, *args, **kwargs)
        begin = self.clock.now()
        out = real(ops, *args, **kwargs)
        calls = [[op.op.__name__, op.peer, op.tensor.numel() * op.tensor.itemsize] for op in ops]
        name = "+".join(dict.fromkeys(call for call, *_ in calls))
        self._add("comm_post", name, begin, {"ops": calls})
        return out

    def wait(self, real: Any, works: list[Any]) -> None:
        """Wait for what has been posted."""
        if not works:
            return
        begin = self.clock.now()
        real(works)
        self._add("comm_wait", "wait", begin, {"n": len(works)})

    def take(self) -> list[dict[str, Any]]:
        """Return the events since the last call, ordered by begin, on the host's clock."""
        ns = self.clock.ns
        out = [
            {"cat": cat, "name": name, "begin": ns(begin), "end": ns(end), "args": facts}
            for cat, name, begin, end, facts in self.events
        ]
        self.events.clear()
        return sorted(out, key=lambda event: event["begin"])

    def _add(self, cat: str, name: str, begin: Any, facts: dict[str, Any]) -> None:
        self.events.append((cat, name, begin, self.clock.now(), facts))
