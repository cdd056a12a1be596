"""The dependency model of timed pipeline operations, on workers written out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sim.graph import Builder, Fixed
from sim.timeline import Timeline
from traces.replay import gaps
from traces.timed_tables.waits import RecordedOp, worker


def rows(*kinds: tuple[str, int]) -> list[RecordedOp]:
    """Operations one after the other, each with the stage of its chunk (-1: none)."""
    return [
        RecordedOp(k, kind, float(k), k + 1.0, -1 if stage < 0 else stage // 2, stage)
        for k, (kind, stage) in enumerate(kinds)
    ]


F, B = "forward-compute", "backward-compute"


def test_the_middle_of_a_pipeline() -> None:
    """Warm-up of two forwards: the first gradients are received from behind the first one on."""
    found = worker(
        rows(("forward-recv", -1), (F, 1), ("forward-send", -1), ("forward-recv", -1), (F, 1),
             ("forward-send", -1), ("backward-recv", -1), (B, 1), ("backward-send", -1),
             ("backward-recv", -1), (B, 1), ("backward-send", -1)),
        stages=3,
    )  # fmt: skip
    assert found.p2p == {
        "forward-recv": [0, 3], "forward-send": [2, 5], "backward-recv": [6, 9],
        "backward-send": [8, 11],
    }  # fmt: skip
    assert sorted(found.waits) == [
        (1, 0),  # F0 waits for what it received
        (2, 1),  # and is sent
        (3, 1),  # the second receive is posted when F0 has run
        (4, 3),
        (5, 4),
        (6, 1),  # the first gradients are asked for when the last but one forward has run
        (7, 6),
        (8, 1),  # likewise
        (8, 7),
        (9, 7),
        (10, 9),
        (11, 10),
    ]


def test_gradients_reduced_beside_the_backwards() -> None:
    """Two chunks on one worker: each is gathered and reduced by itself."""
    kinds = (
        ("params-all-gather", 0), ("params-all-gather", 2), (F, 0), (F, 2), (B, 2),
        ("grads-reduce-scatter", 2), (B, 0), ("grads-reduce-scatter", 0), ("gc", -1),
        ("layernorm-grads-all-reduce", -1), ("separate-grads-all-reduce", -1),
        ("optimizer-clip-main-grad", -1), ("optimizer", -1),
    )  # fmt: skip
    assert sorted(worker(rows(*kinds), stages=4).waits) == [
        (2, 0), (3, 1), (5, 4), (7, 6), (8, 6), (9, 7), (9, 8), (10, 9), (11, 10), (12, 11),
    ]  # fmt: skip


def test_calls_that_launched_nothing_are_matched_but_have_no_peer() -> None:
    """With two chunks, the first worker also records receives of the first chunk of all."""
    kinds = (("forward-recv", -1), (F, 0), ("forward-recv", -1), (F, 2), ("forward-recv", -1))
    found = worker(rows(*kinds), stages=4)
    assert found.p2p["forward-recv"] == [2]  # the last was recorded after all forwards
    assert (1, 0) in found.waits
    with pytest.raises(ValueError, match="3 forward-send for 1 computes of a worker, of which 1"):
        worker(rows((F, 0), *[("forward-send", -1)] * 3), stages=2)


def test_the_last_to_come_shows_the_hosts_gap() -> None:
    """Ranks end at 3, 7 and 9 s and all go on at 10 s: 1 s is the host's, the rest is waiting."""
    b = Builder()
    start, end = [], []
    for rank, ready in enumerate((3.0, 7.0, 9.0)):
        first = b.add("gc", rank, "compute", Fixed(ready), stage=0)
        b.add("layernorm", rank, "norm", Fixed(2.0), waits=[first], stage=0)
        start += [0.0, 10.0]
        end += [ready, 12.0]
    timeline = Timeline(b.graph(), *map(gaps.np.array, (start, end)))
    assert gaps.learn(timeline, np.ones(6, bool)) == {(0, -1, 0): 0.0, (0, 0, 1): 1.0}


def test_what_waits_for_something_unnamed_waits_for_no_host() -> None:
    """A receive needs the forward that ended at 3 s; it is posted at 7 s, when the backward ended.

    The host took none of these 4 s.
    """
    b = Builder()
    forward = b.add("F", 0, "compute", Fixed(3.0), stage=0)
    b.add("B", 0, "compute", Fixed(4.0), stage=0)
    b.add("recv", 0, "recv", Fixed(1.0), waits=[forward], stage=0)
    start, end = (np.array(column) for column in ([0.0, 3.0, 7.0], [3.0, 7.0, 8.0]))
    timeline = Timeline(b.graph(), start, end)
    assert gaps.latest(timeline).gap.tolist() == [0, 0, 4]
    assert gaps.learn(timeline, np.ones(3, bool))[0, 0, 2] == 0
