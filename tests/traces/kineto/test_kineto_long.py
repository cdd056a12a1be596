"""Long traces: what is done for each event does not grow with the number of events."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.kineto import waits
from traces.kineto.link import _NOTHING
from traces.kineto.unwaited import Unwaited
from traces.reading import read
from traces.replay import host_path


@pytest.mark.parametrize("launches", [50, 200])
def test_a_stream_that_waits_for_itself_is_asked_once_per_wait(
    kineto, monkeypatch: pytest.MonkeyPatch, launches: int
) -> None:
    """Such a wait says nothing, and is kept until another stream is launched on."""
    events = []
    for k in range(launches):
        events += kineto.launched("gemm", 20 * k, 20 * k + 6, 5, k + 1)
        events += [kineto.call("cudaEventRecord", 20 * k + 6, 1)]
        events += [kineto.call("cudaStreamWaitEvent", 20 * k + 8, 1)]
    asked = []
    monkeypatch.setattr(waits, "_possible", lambda *of: asked.append(of) or False)
    read(kineto.write(events))
    assert len(asked) < 2 * launches


def test_operators_are_summed_up_once_per_thread(kineto, monkeypatch: pytest.MonkeyPatch) -> None:
    events = []
    for k in range(30):
        events += kineto.launched("gemm", 20 * k, 20 * k + 6, 5, k + 1)
        events += [kineto.event("cpu_op", "aten::mm", 20 * k + 7, 6)]
    made = []

    class Counted(host_path.Covered):
        def __init__(self, of: object) -> None:
            made.append(of)
            super().__init__(of)

    monkeypatch.setattr(host_path, "Covered", Counted)
    found = host_path.host_path(read(kineto.write(events)))
    assert found.seconds[host_path.OPERATORS] > 0
    assert len(made) == 1


NUMBERS = st.integers(-1, 3)


@given(st.lists(st.one_of(st.tuples(NUMBERS, NUMBERS), NUMBERS), max_size=40))
def test_collectives_leave_as_from_a_list(calls: list) -> None:
    """A pair is a launch of two messages with these numbers; a number, a wait for it."""
    messages = [
        tuple(_NOTHING._replace(sequence=number) for number in call)
        if isinstance(call, tuple)
        else ()
        for call in calls
    ]
    ours, naive = Unwaited(messages), deque[int]()
    for op, call in enumerate(calls):
        if isinstance(call, tuple):
            ours.append(op)
            naive.append(op)
            continue
        same = [k for k in naive if any(m.sequence == call >= 0 for m in messages[k])]
        wanted = (same or [*naive] or [-1])[0]
        if naive:
            naive.remove(wanted)
        assert ours.pop(call) == wanted
        assert len(ours) == len(naive)
