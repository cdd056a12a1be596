"""Chakra execution traces: ours written and read back, those of others read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.builder.job import Job
from sim.builder.strategies.exchange import Policy
from sim.builder.training_step import training_step
from sim.engine import simulate
from sim.graph import Builder, Communication, Compute, Copy, Fixed, Graph
from sim.machine.hardware import ideal
from sim.runs.schedule_run import plan_of, run_plan
from sim.timeline import Timeline
from traces.chakra import write as chakra
from traces.chakra.schema import (
    NODE_TYPES,
    GlobalMetadata,
    Node,
    attributes,
    read_nodes,
    set_attributes,
    write_messages,
)
from traces.reading import read
from traces.recording import Selection
from traces.replay import replays

TIMES = {"F": 5.0, "I": 4.0, "W": 3.0, "p2p": 0.5}


def relations(graph: Graph) -> list[Any]:
    """Everything of every op that must come back; an op's parts have no order."""
    parts = [sorted(graph.parts(i).tolist()) for i in range(len(graph))]
    return [
        (graph.op(i), graph.waits(i).tolist(), [(p, graph.works[graph.part_work[p]]) for p in of])
        for i, of in enumerate(parts)
    ]


def same(one: Timeline, other: Timeline) -> None:
    assert relations(one.graph) == relations(other.graph)
    for column in ("lag", "wait_lag", "part_tail", "step"):
        assert getattr(one.graph, column).tolist() == getattr(other.graph, column).tolist()
    assert one.start.tolist() == other.start.tolist()
    assert one.end.tolist() == other.end.tolist()


@pytest.mark.parametrize("policy", [Policy("direction"), Policy("batched", paired=True)])
def test_a_pipeline_comes_back(policy: Policy, tmp_path: Path) -> None:
    timeline = run_plan(plan_of("one_f_one_b", 4, 6, 1), TIMES, policy)
    files = chakra.write(timeline, tmp_path)
    assert [file.name for file in files] == [f"rank.{rank}.et" for rank in range(4)]
    recording = read([tmp_path])
    assert recording.format == "chakra"
    same(recording.timeline, timeline)
    same(read(files).timeline, timeline)
    assert replays.replay(recording).end_errors().max() < 1e-9


@pytest.mark.slow
def test_a_training_step_comes_back(small_job: Callable[..., Job], tmp_path: Path) -> None:
    """Kernels, collectives of several dimensions, messages; of several ranks."""
    graph = training_step(small_job(tp=2, pp=2, dp=2, microbatches=2))
    times = np.arange(len(graph)) / 7
    timeline = Timeline(graph, times, times + 0.125)
    chakra.write(timeline, tmp_path)
    same(read([tmp_path]).timeline, timeline)
    some = read([tmp_path], Selection(ranks=[1])).timeline.graph
    assert some.ranks().tolist() == [1]


def test_lags_tails_copies_and_the_host_come_back(tmp_path: Path) -> None:
    b = Builder()
    launch = b.add("launch", 0, "host", Fixed(0.5, "host"), step=1)
    copy = b.add("copy", 0, "h2d", Copy(8.0, "h2d"), lag=0.25)
    gemm = b.add("gemm", 0, "compute", Compute("gemm", 9.0, 7.0, (1, 2, 3, 4)), [copy], layer=3)
    b.wait(gemm, launch, 2.0)
    work = Fixed(3.0, "communication", "dp")
    b.join([b.add("meet", rank, "dp", work) for rank in (0, 1)], work, [0.0, 0.125])
    graph = b.graph()
    timeline = Timeline(graph, np.arange(5.0), np.arange(5.0) + 0.5)
    chakra.write(timeline, tmp_path)
    same(read([tmp_path]).timeline, timeline)


def test_what_astra_sim_reads(tmp_path: Path) -> None:
    """Types, sizes, ends and dependencies, in the attributes of its feeder."""
    b = Builder()
    gemm = b.add("gemm", 0, "compute", Compute("gemm", 9.0, 7.0))
    norm = b.add("norm", 0, "compute", Compute("norm", 1.0, 2.0))
    work = Communication("all_gather", 64.0, (0, 1), "tp")
    b.join([b.add("ag", rank, "tp", work, [norm][rank:]) for rank in (0, 1)])
    message = Communication("p2p", 32.0, (0, 1), "pp")
    b.join([b.add("send", 0, "pp", message, [gemm]), b.add("recv", 1, "pp", message)])
    graph = b.graph()
    files = chakra.write(Timeline(graph, np.arange(6) * 1e-6, np.arange(6) * 3e-6 + 2e-6), tmp_path)
    with files[0].open("rb") as file:
        nodes = [(node, attributes(node)) for node in read_nodes(file)]
    assert [NODE_TYPES[node.type] for node, _ in nodes] == [
        "COMP", "COMP", "COMM_COLL", "COMM_SEND",
    ]  # fmt: skip
    assert [[*node.data_deps] for node, _ in nodes] == [[], [], [1], [0]]
    assert [[*node.ctrl_deps] for node, _ in nodes] == [[], [0], [], []]
    assert [(node.start_time_micros, node.duration_micros) for node, _ in nodes[:2]] == [
        (0, 2),
        (1, 4),
    ]
    assert (nodes[0][1]["num_ops"], nodes[0][1]["tensor_size"]) == (9, 7)
    assert nodes[0][1]["is_cpu_op"] is False
    assert {key: nodes[2][1][key] for key in ("comm_type", "comm_size", "comm_group")} == {
        "comm_type": 2, "comm_size": 64, "comm_group": [0, 1],
    }  # fmt: skip
    ends = ("comm_src", "comm_dst", "comm_size")
    assert [nodes[3][1][key] for key in ends] == [0, 1, 32]
    with files[1].open("rb") as file:
        received = [*read_nodes(file)][1]
    assert NODE_TYPES[received.type] == "COMM_RECV"
    assert attributes(received)["comm_tag"] == nodes[3][1]["comm_tag"]


def test_the_bytes_are_those_of_the_schema(tmp_path: Path) -> None:
    """Written out by hand from et_def.proto: tags are 8 × the field's number + the wire type."""
    metadata = b"\x0a\x050.0.4"  # version = 1
    attribute = b"\x0a\x07num_ops" + b"\x48\x05"  # name = 1, int64_val = 9
    node = b"\x08\x03" + b"\x12\x01x" + b"\x18\x04"  # id = 1, name = 2, type = 3
    node += b"\x22\x01\x01" + b"\x2a\x01\x02"  # ctrl_deps = 4, data_deps = 5, packed
    node += b"\x30\x07" + b"\x38\x09"  # start_time_micros = 6, duration_micros = 7
    node += b"\x52" + bytes([len(attribute)]) + attribute  # attr = 10
    path = tmp_path / "x.0.et"
    with path.open("wb") as file:
        of = Node(id=3, name="x", type=4, ctrl_deps=[1], data_deps=[2], start_time_micros=7)
        of.duration_micros = 9
        set_attributes(of, num_ops=5)
        write_messages(file, GlobalMetadata(version="0.0.4"), iter([of]))
    assert path.read_bytes() == bytes([len(metadata)]) + metadata + bytes([len(node)]) + node


def foreign(path: Path, nodes: list[Any]) -> Path:
    with path.open("wb") as file:
        write_messages(file, GlobalMetadata(version="1.0"), iter(nodes))
    return path


def node(number: int, kind: str, needs: list[int], start: int, seconds: int, **has: Any) -> Any:
    made = Node(id=number, name=f"{kind} {number}", type=NODE_TYPES.index(kind), data_deps=needs)
    made.start_time_micros, made.duration_micros = start, seconds
    set_attributes(made, **has)
    return made


def test_traces_of_others(tmp_path: Path) -> None:
    """Two ranks: rank 1 comes 4 us late to an all-reduce of 3 us, then sends rank 0 a message."""
    for rank in (0, 1):
        late = 4 * rank
        nodes = [
            node(5, "COMM_COLL", [9], 10 + late, 7 - late, comm_type=0, comm_size=64, pg_name="g"),
            node(9, "COMP", [], 0, 10 + late, num_ops=5),
            node(11, "COMM_SEND" if rank else "COMM_RECV", [5], 17, 2,
                 comm_src=1, comm_dst=0, comm_tag=7),
            node(12, "METADATA", [], 0, 0),
        ]  # fmt: skip
        foreign(tmp_path / f"llama.{rank}.et", nodes)
    recording = read([tmp_path])
    graph = recording.timeline.graph
    assert [graph.op(i)[:3] for i in range(3)] == [
        ("COMP 9", 0, "compute"), ("COMM_COLL 5", 0, "comm_coll"), ("COMM_RECV 11", 0, "comm_recv"),
    ]  # fmt: skip
    assert [graph.waits(i).tolist() for i in range(6)] == [[], [0], [1], [], [3], [4]]
    assert [graph.parts(i).tolist() for i in range(6)] == [[], [0], [1], [], [0], [1]]
    assert graph.works[graph.part_work[0]].seconds == pytest.approx(3e-6)
    found = replays.replay(recording)
    assert found.timeline.seconds == pytest.approx(19e-6)
    assert found.end_errors().max() < 1e-12


def test_workloads_without_times(tmp_path: Path) -> None:
    """As ASTRA-sim's generators write them: sizes, and no durations."""
    nodes = [
        node(0, "COMP", [], 0, 0, num_ops=50, tensor_size=8),
        node(1, "COMM_COLL", [0], 0, 0, comm_type=7, comm_size=64),
        node(2, "MEM_LOAD", [1], 0, 0, tensor_size=16),
    ]
    for rank in (0, 1):
        foreign(tmp_path / f"w.{rank}.et", nodes)
    recording = read([tmp_path])
    assert "times are missing: no node has a duration, only sizes" in recording.warnings[0]
    graph = recording.timeline.graph
    assert graph.op(0).work == Compute("gemm", 50.0, 8.0)
    assert graph.op(2).work == Copy(16.0, "h2d")
    assert graph.works[graph.part_work[0]] == Communication(
        "reduce_scatter", 64.0, (0, 1), "communication"
    )


def test_workloads_of_which_some_times_are_missing(tmp_path: Path) -> None:
    """A call of the host of less than a microsecond lacks nothing."""
    nodes = [
        node(0, "COMP", [], 0, 5, num_ops=50),
        node(1, "COMM_COLL", [0], 5, 0, comm_size=64),
        node(2, "COMP", [], 5, 0, is_cpu_op=True),
    ]
    (said,) = read([foreign(tmp_path / "w.0.et", nodes)]).warnings
    assert "1 of 2 nodes with sizes have no duration" in said
    assert read([foreign(tmp_path / "v.0.et", nodes[::2])]).warnings == ()


def test_what_cannot_be_read_or_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.0.et"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="not a Chakra trace that can be read: it is empty"):
        read([path])
    path.write_bytes(b"\x07no chakra at all")
    with pytest.raises(ValueError, match="not a Chakra trace that can be read"):
        read([path])
    path.write_bytes(b"\xff" * 8 + b"\x7f")  # a message of 2^63 bytes
    with pytest.raises(ValueError, match="not a Chakra trace that can be read: it is damaged"):
        read([path])
    foreign(path, [node(1, "COMP", [2], 0, 1), node(2, "COMP", [1], 0, 1)])
    with pytest.raises(ValueError, match="depend on each other in a circle"):
        read([path])
    foreign(tmp_path / "y.0.et", [])
    with pytest.raises(ValueError, match=r"are both of rank 0"):
        read([tmp_path])
    b = Builder()
    b.add("a", 0, "compute", Fixed(1.0))
    b.add("b", 1, "compute", Fixed(1.0), waits=[0])
    graph = b.graph()
    with pytest.raises(ValueError, match="waits for an op of another rank"):
        chakra.write(simulate(graph, ideal(graph)), tmp_path)
