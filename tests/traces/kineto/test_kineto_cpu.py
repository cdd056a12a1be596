"""Traces without a GPU: operators compute, gloo's collectives communicate."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from sim.analysis.intervals import union, within
from sim.engine import simulate
from sim.machine.hardware import ideal
from traces.reading import read
from traces.recording import Recording, Selection

pytestmark = pytest.mark.slow


def trace(kineto, rank: int, late: int) -> Path:
    """Linear 0 to 40 (on rank 1 longer), then an all-reduce that its thread waits for, then add."""
    group = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}
    events = [
        kineto.event("cpu_op", "aten::linear", 0, 40 + late),
        kineto.event("cpu_op", "aten::addmm", 3, 30 + late),
        kineto.event("cpu_op", "Redistribute", 42 + late, 20),
        kineto.event("cpu_op", "c10d::allreduce_", 45 + late, 10),
        kineto.event("user_annotation", "gloo:all_reduce", 50 + late, 110 - late, tid=200),
        kineto.event("cpu_op", "aten::copy_", 51 + late, 5, tid=200),
        kineto.event("cpu_op", "aten::add", 163, 9),
        kineto.event("cpu_op", "_c10d_functional::wait_tensor", 165, 3),
    ]
    info = {"rank": rank, "world_size": 2, "backend": "gloo", "pg_config": [group]}
    return kineto.write(events, None, f"rank{rank}.json", distributedInfo=info)


@pytest.fixture
def made(kineto) -> Recording:
    return read([trace(kineto, rank, late) for rank, late in ((0, 0), (1, 60))])


def test_ops_by_hand(made):
    """Waits inside of operators are cut out; what gloo's thread does is the collective's."""
    frame = made.timeline.to_pandas().query("rank == 0")
    rows = [
        (row.stream, row.name, round(1e6 * row.start), round(1e6 * row.end))
        for row in frame.sort_values("start").itertuples(index=False)
    ]
    assert rows == [
        ("cpu", "aten::linear", 0, 40),
        ("cpu", "Redistribute", 42, 45),
        ("gloo", "gloo:all_reduce", 50, 160),
        ("cpu", "Redistribute", 55, 62),
        ("cpu", "aten::add", 163, 165),
        ("cpu", "aten::add", 168, 172),
    ]
    assert made.counts == {"cpu_ops": 12, "collectives": 1, "collectives_matched": 1}
    assert "rank 0 has no GPU op" in made.warnings[0]


def test_waits_by_hand(made):
    """The all-reduce for Redistribute, the add for the all-reduce, and for rank 1 the members."""
    graph = made.timeline.graph
    names = [graph.names[k] for k in graph.name]
    reduce = names.index("gloo:all_reduce")
    assert [names[k] for k in graph.waits(reduce)] == ["Redistribute"]
    add = names.index("aten::add")
    assert graph.waits(add).tolist() == [reduce]
    assert np.bincount(graph.part).tolist() == [2]
    work = graph.works[graph.part_work[0]]
    assert work.seconds == pytest.approx(50e-6)  # both are there at 110, it ends at 160
    assert simulate(graph, ideal(graph)).end == pytest.approx(made.timeline.end, abs=1e-9)


def blocking(kineto, rank: int) -> Path:
    """A wrapping operator, 0 to 100, calls 10 to 14 what gloo does from 12 to 70, and copies then.

    Another collective ends at 90 while a multiplication runs beside it, and one at 130, in between.
    """
    events = [
        kineto.event("cpu_op", "RegisterPostBackwardFunctionBackward", 0, 100),
        kineto.event("cpu_op", "c10d::_allgather_base_", 10, 4),
        kineto.event("user_annotation", "gloo:all_gather", 12, 58, tid=200),
        kineto.event("cpu_op", "aten::copy_", 73, 7),
        kineto.event("user_annotation", "gloo:all_reduce", 81, 9, tid=201),
        kineto.event("cpu_op", "aten::mm", 82, 17),
        kineto.event("cpu_op", "aten::resolve_conj", 83, 1),
        kineto.event("user_annotation", "gloo:all_reduce", 105, 25, tid=200),
        kineto.event("cpu_op", "aten::add", 140, 9),
    ]
    group = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}
    info = {"rank": rank, "world_size": 2, "backend": "gloo", "pg_config": [group]}
    return kineto.write(events, None, f"rank{rank}.json", distributedInfo=info)


def test_a_blocking_call_inside_a_wrapping_operator_is_no_computing(kineto):
    """From 14, when the call has returned, to 70 it waits; beside the multiplication it does not.

    It also waited inside the call (10 to 14); of 92 microseconds that gloo moves 9 are hidden.
    """
    made = read([blocking(kineto, rank) for rank in (0, 1)])
    frame = made.timeline.to_pandas().query("rank == 0 and stream == 'cpu'").sort_values("start")
    spans = [(round(1e6 * row.start), round(1e6 * row.end)) for row in frame.itertuples()]
    assert spans == [(0, 10), (70, 100), (140, 149)]
    assert hidden(made) == pytest.approx(9 / 92)


def hidden(made: Recording) -> float:
    """The share of gloo's moving that is beside computing, mean of ranks."""
    frame = made.timeline.to_pandas()
    shares = []
    for _, rows in frame.groupby("rank"):
        cpu, gloo = (
            union(of["start"].to_numpy(), of["end"].to_numpy())
            for of in (rows[rows["stream"] != "gloo"], rows[rows["stream"] == "gloo"])
        )
        shares.append(within(gloo, cpu).sum() / gloo.seconds())
    return float(np.mean(shares))


@pytest.mark.parametrize(("mode", "low", "high"), [("fsdp2", 0.0, 0.08), ("ddpnohook", 0.8, 1.0)])
def test_what_is_hidden_of_real_collectives(shared, mode, low, high):
    """FSDP2 on gloo waits for each of its collectives; DDP's run beside the backward."""
    paths = [shared / f"recorded/kineto/{mode}_rank{rank}.json.gz" for rank in (0, 1)]
    assert low <= hidden(read(paths, Selection(window=(0.05, 0.3)))) <= high


@pytest.mark.parametrize("mode", ["ddp", "tp", "fsdp2", "pp_1F1B_P2"])
def test_real_runs_over_gloo(shared, mode):
    """All that gloo did is matched, and simulating the graph takes as long, to 2 %.

    It is exact but where a member comes so late that a message looks faster than it can be.
    """
    paths = [shared / f"recorded/kineto/{mode}_rank{rank}.json.gz" for rank in (0, 1)]
    made = read(paths)
    events = json.loads(gzip.decompress(paths[0].read_bytes()))["traceEvents"]
    marks = sum(str(event.get("name")).startswith("gloo:") for event in events)
    assert made.counts["collectives"] == made.counts["collectives_matched"] == marks > 8
    again = simulate(made.timeline.graph, ideal(made.timeline.graph))
    assert again.seconds == pytest.approx(made.timeline.seconds, rel=0.02)


def test_pipeline_messages_have_both_ends(shared):
    """Four sends each way; PyTorch's "gloo:recv" of one rank is matched with the other's send."""
    folder = shared / "recorded/kineto"
    made = read([folder / f"pp_1F1B_P2_rank{rank}.json.gz" for rank in (0, 1)])
    frame = made.timeline.to_pandas()
    assert (frame["name"] == "gloo:send").sum() == (frame["name"] == "gloo:recv").sum() == 8
    assert np.bincount(made.timeline.graph.part).tolist() == [2] * 9
