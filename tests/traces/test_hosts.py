"""Recordings simulated again: as they were, with the host as it was, and with it as it behaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sim.engine import simulate
from sim.graph import Builder, Fixed, Graph
from sim.machine.hardware import ideal
from sim.timeline import Timeline
from traces.recording import Recording
from traces.replay.host_path import host_path
from traces.replay.hosts import anchored, modelled, ops_of, recorded
from traces.replay.lags import exact, late


def recording(rows: list[tuple], waits=(), joined=()) -> Recording:
    """From rows (name, rank, stream, kind, start, end), waits (later, earlier), parts (ops, s)."""
    b = Builder()
    for name, rank, stream, kind, start, end in rows:
        b.add(name, rank, stream, Fixed(end - start, kind))
    for later, earlier in waits:
        b.wait(later, earlier)
    for ops, seconds in joined:
        b.join(ops, Fixed(seconds, "communication"))
    start, end = (np.array([row[k] for row in rows], float) for k in (4, 5))
    return Recording(exact(Timeline(b.graph(), start, end)), "test", ())


def faster(graph: Graph, name: str, seconds: float) -> Graph:
    """One op's work replaced, and a name of its own for nothing else."""
    i = next(i for i in range(len(graph)) if graph.op(i).name == name)
    work = graph.work.copy()
    work[i] = len(graph.works)
    return replace(graph, works=(*graph.works, Fixed(seconds, graph.op(i).work.kind)), work=work)


def times(graph: Graph) -> dict[str, tuple[float, float]]:
    ran = simulate(graph, ideal(graph))
    ops = (graph.op(i).name for i in range(len(graph)))
    return dict(zip(ops, zip(ran.start.tolist(), ran.end.tolist(), strict=True), strict=True))


SYNCED = recording(
    # the host launches a and b, waits for b, and 7 s later launches c
    [
        ("launch a", 0, "host 1", "host", 0, 2),
        ("a", 0, "stream 7", "gemm", 3, 23),
        ("launch b", 0, "host 1", "host", 5, 7),
        ("b", 0, "stream 7", "gemm", 24, 54),
        ("sync", 0, "host 1", "host", 54, 55),
        ("launch c", 0, "host 1", "host", 62, 64),
        ("c", 0, "stream 7", "gemm", 65, 70),
    ],
    waits=[(1, 0), (3, 2), (4, 3), (6, 5)],
)


@pytest.mark.parametrize("variant", [recorded, modelled, anchored])
def test_unchanged_it_is_what_was_recorded(variant):
    ran = times(variant(SYNCED))
    for i in range(len(SYNCED.timeline.graph)):
        name = SYNCED.timeline.graph.op(i).name
        there = SYNCED.timeline.start[i], SYNCED.timeline.end[i]
        assert ran[name] == pytest.approx(there, abs=1e-12), name


def test_a_faster_kernel_lets_a_host_that_waited_for_it_go_on_sooner():
    """With b of 10 s instead of 30 the host is free at 35, launches c at 42, which ends at 50."""
    ran = times(faster(modelled(SYNCED), "b", 10.0))
    assert ran["b"] == pytest.approx((24, 34))
    assert ran["sync"] == pytest.approx((34, 35))
    assert ran["launch c"] == pytest.approx((42, 44))
    assert ran["c"] == pytest.approx((45, 50))


def test_an_anchored_host_launches_when_it_did():
    ran = times(faster(anchored(SYNCED), "b", 10.0))
    assert ran["b"] == pytest.approx((24, 34))
    assert ran["launch c"] == pytest.approx((62, 64))
    assert ran["c"] == pytest.approx((65, 70))


def delayed(*delays: float) -> Recording:
    """Kernels that start so long after their launches, of 2 s, one every 20 s."""
    rows = []
    for n, delay in enumerate(delays):
        at = 20 * n
        rows.append((f"launch {n}", 0, "host 1", "host", at, at + 2))
        rows.append((f"k{n}", 0, "stream 7", "gemm", at + 2 + delay, at + 5 + delay))
    return recording(rows, [(2 * n + 1, 2 * n) for n in range(len(delays))])


def test_delays_that_nothing_explains_become_typical_where_the_host_is_modelled():
    """9 was chance, the median is 1; anchored, it keeps what it had."""
    made = delayed(1, 1, 9)
    assert times(modelled(made))["k2"] == pytest.approx((43, 46))
    for variant in (recorded, anchored):
        assert times(variant(made))["k2"] == pytest.approx((51, 54))


def test_a_late_start_is_no_chance():
    """More than ten times the median: it is kept, and called so; 100 us are too few to be."""
    made = delayed(1, 1, 11)
    assert times(modelled(made))["k2"] == pytest.approx((53, 56))
    assert late(made.timeline).tolist() == [False] * 5 + [True]
    seconds = {"host other": 40, "launch": 2, "late start": 11, "compute gemm": 3}
    assert host_path(made).seconds == seconds
    assert not late(delayed(1e-6, 1e-6, 99e-6).timeline).any()
    assert late(delayed(1e-6, 1e-6, 102e-6).timeline).any()


def test_what_is_usual_for_a_name_is_so_for_its_kernels():
    """Each third kernel has another name and comes 5 s after its launch, all others 1 s."""
    rows, waits = [], []
    for n in range(12):
        name, delay = ("copy", 5 + n % 2) if n % 3 == 2 else ("gemm", 1)
        rows.append((f"launch {n}", 0, "host 1", "host", 20 * n, 20 * n + 2))
        rows.append((name, 0, "stream 7", "gemm", 20 * n + 2 + delay, 20 * n + 9 + delay))
        waits.append((2 * n + 1, 2 * n))
    graph = modelled(recording(rows, waits))
    assert graph.wait_lag[2::3] == pytest.approx([5.5] * 4)
    assert graph.wait_lag[0::3] == pytest.approx([1.0] * 4)


def test_a_need_met_early_keeps_no_more_than_its_slack():
    """Behind stream order k1 starts 0.5 s after k0; its launch, 0.2 s earlier, is no later need."""
    rows = [
        ("launch 0", 0, "host 1", "host", 0.0, 1.0),
        ("k0", 0, "stream 7", "gemm", 6.0, 10.0),
        ("launch 1", 0, "host 1", "host", 8.0, 9.8),
        ("k1", 0, "stream 7", "gemm", 10.5, 12.0),
    ]
    made = recording(rows, [(1, 0), (3, 2)])
    assert times(modelled(made))["k1"] == pytest.approx((10.5, 12.0))


def test_ops_without_a_launch_keep_their_start():
    rows = [("early", 0, "stream 7", "gemm", 4.0, 6.0), ("next", 0, "stream 7", "gemm", 9.0, 10.0)]
    for variant in (recorded, modelled, anchored):
        assert times(variant(recording(rows)))["next"] == pytest.approx((9.0, 10.0))


def test_a_collective_ends_when_its_last_rank_has_come():
    """Rank 1 comes at 12, data moves for 3 s; with its launch 5 s sooner all ends at 10."""
    rows = [
        ("launch 0", 0, "host 1", "host", 0.0, 1.0),
        ("all_reduce 0", 0, "stream 24", "communication", 2.0, 15.0),
        ("launch 1", 1, "host 2", "host", 10.0, 11.0),
        ("all_reduce 1", 1, "stream 24", "communication", 12.0, 15.0),
    ]
    made = recording(rows, [(1, 0), (3, 2)], [((1, 3), 3.0)])
    assert times(modelled(made))["all_reduce 0"] == pytest.approx((2.0, 15.0))
    graph = modelled(made)
    sooner = replace(graph, lag=np.where(graph.lag == 10.0, 5.0, graph.lag))
    assert times(sooner)["all_reduce 0"] == pytest.approx((2.0, 10.0))


def test_gpu_ops_are_the_same_rows_of_every_replay():
    graph = anchored(SYNCED)
    names = [graph.op(i).name for i in ops_of(simulate(graph, ideal(graph)), 0)]
    assert names == [SYNCED.timeline.graph.op(i).name for i in ops_of(SYNCED.timeline, 0)]
    assert names == ["a", "b", "c"]
