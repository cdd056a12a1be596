"""Memory curves and bytes on the wire against a plain loop and closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sim.analysis.traffic import bytes_sent
from sim.graph import Builder, Communication, Compute, Fixed, Memory
from sim.memory.curve import curves, peaks
from sim.timeline import Timeline


def random_timeline(seed: int, ops: int = 60) -> Timeline:
    rng, b = np.random.default_rng(seed), Builder()
    for _ in range(ops):
        changes = [
            Memory(
                str(rng.choice(["activations", "gradients"])), float(rng.integers(-9, 10)), str(at)
            )
            for at in rng.choice(["start", "end"], rng.integers(0, 4))
        ]
        b.add("op", int(rng.integers(0, 3)), "compute", Fixed(1.0), memory=changes)
    b.persistent = {0: {"weights": 7.0, "a": 2.0}, 2: {"weights": 5.0}}
    start = rng.integers(0, 12, ops).astype(float)
    return Timeline(b.graph(), start, start + rng.integers(1, 6, ops))


def replay(timeline: Timeline, rank: int) -> list[tuple[float, dict[str, float]]]:
    """What the rank holds after each change, frees of an instant before its allocations."""
    graph, changes = timeline.graph, []
    for i in np.flatnonzero(graph.rank == rank):
        for k in range(graph.memory_start[i], graph.memory_start[i + 1]):
            at = timeline.end[i] if graph.memory_at_end[k] else timeline.start[i]
            size = float(graph.memory_bytes[k])
            changes.append((at, size > 0, size, graph.categories[graph.memory_category[k]]))
    held = dict(graph.persistent.get(rank, {}))
    states = [(float(timeline.start.min()), dict(held))]
    for at, _, size, category in sorted(changes, key=lambda change: change[:2]):
        held[category] = held.get(category, 0.0) + size
        states.append((at, dict(held)))
    return states


@pytest.mark.parametrize("seed", range(5))
def test_peak_and_curve_equal_a_plain_replay(seed):
    timeline = random_timeline(seed)
    for peak in peaks(timeline):
        states = replay(timeline, peak.rank)
        at, held = max(states, key=lambda state: sum(state[1].values()))
        assert peak.peak_bytes == sum(held.values())
        assert peak.seconds == at
        assert peak.by_category == {name: size for name, size in held.items() if size}
        curve = curves(timeline)[peak.rank]
        final = {at: sum(held.values()) for at, held in states}
        final.setdefault(float(timeline.end.max()), sum(states[-1][1].values()))
        assert dict(zip(curve.seconds, curve.bytes, strict=True)) == final
        assert (np.diff(curve.seconds) > 0).all()


def test_memory_freed_at_an_instant_serves_what_is_allocated_then():
    b = Builder()
    b.add(
        "a", 0, "compute", Fixed(2.0), memory=[Memory("x", 8.0, "start"), Memory("x", -8.0, "end")]
    )
    b.add("b", 0, "compute", Fixed(2.0), memory=[Memory("x", 6.0, "start")])
    timeline = Timeline(
        replace(b.graph(), stands_for={0: 4}), np.array([0.0, 2.0]), np.array([2.0, 4.0])
    )
    (peak,) = peaks(timeline)
    assert (peak.peak_bytes, peak.seconds, peak.stands_for) == (8.0, 0.0, 4)


def test_bytes_sent_are_those_of_the_textbook():
    """Ring all-reduce 2(n-1)M/n, its halves (n-1)M/n each; a message M, by its source alone."""
    b, size, n = Builder(), 96.0, 4
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        work = Communication(name, size, tuple(range(n)), name)
        b.join([b.add(name, rank, "tp", work) for rank in range(n)])
    p2p = Communication("p2p", size, (2, 1), "pp")
    b.join([b.add("batch", rank, "pp", p2p) for rank in (1, 2)])
    b.add("gemm", 3, "compute", Compute("gemm", 1.0, 1.0))
    b.add("alone", 0, "dp", Communication("all_reduce", size, (0, 8, 16), "dp"))  # peers folded
    sent = bytes_sent(b.graph())
    assert sent["all_reduce"] == dict.fromkeys(range(n), 2 * 3 * size / 4)
    for name in ("all_gather", "reduce_scatter", "all_to_all"):
        assert sent[name] == dict.fromkeys(range(n), 3 * size / 4)
    assert sent["pp"] == {0: 0.0, 1: 0.0, 2: size, 3: 0.0}
    assert sent["dp"][0] == 2 * 2 * size / 3


def test_an_unknown_collective_is_named():
    b = Builder()
    b.add("x", 0, "tp", Communication("gossip", 1.0, (0, 1), "tp"))
    with pytest.raises(ValueError, match="no collective 'gossip'; there are all_reduce"):
        bytes_sent(b.graph())
