"""Writes a timeline as Chakra execution traces (MLCommons): one ``.et`` file per rank.

ASTRA-sim reads them. Each op is a node. Its waits are data dependencies, and the op before it on
its stream is a control dependency. Attributes are those of ASTRA-sim's feeder (is_cpu_op, num_ops,
tensor_size, comm_type, comm_size, comm_src, comm_dst, comm_tag, pg_name); times are whole
microseconds in the nodes. Further attributes hold what the schema has no place for (streams,
phases, exact seconds, lags), so that what is written reads back equal, except for memory. An op
with several parts is a node for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from schedules.input_error import InputError
from sim.analysis.relations import previous
from sim.files import replacing
from sim.graph import PHASES, Communication, Compute, Copy, Graph, Work, owners
from sim.timeline import Timeline, dimension
from traces.chakra.read import read, recognises
from traces.chakra.schema import (
    COLLECTIVES,
    NODE_TYPES,
    GlobalMetadata,
    Node,
    set_attributes,
    write_messages,
)

__all__ = ["read", "recognises", "write"]

VERSION = "0.0.4"


def write(timeline: Timeline, folder: Path | str, prefix: str = "rank") -> list[Path]:
    """Write ``prefix.0.et`` and so on into a folder that exists, and return the files.

    Raises InputError when an op waits for another rank's op, which Chakra has no place for.
    """
    graph = timeline.graph
    owner = owners(graph.wait_start)
    if (graph.rank[owner] != graph.rank[graph.wait_on]).any():
        raise InputError("Chakra traces cannot say that an op waits for an op of another rank")
    members: list[list[int]] = [[] for _ in graph.part_work]
    for op in np.flatnonzero(np.diff(graph.part_start)).tolist():
        for part in graph.parts(op).tolist():
            members[part].append(op)
    before = previous(graph).tolist()
    files = []
    for rank in graph.ranks().tolist():
        path = Path(folder) / f"{prefix}.{rank}.et"
        with replacing(path) as temporary, temporary.open("wb") as file:
            nodes = _nodes(timeline, rank, members, before)
            write_messages(file, GlobalMetadata(version=VERSION), nodes)
        files.append(path)
    return files


def _nodes(
    timeline: Timeline, rank: int, members: Sequence[Sequence[int]], before: Sequence[int]
) -> Iterator[Any]:
    """Yield the nodes of a rank in order of its ops; an op's first node carries its attributes."""
    graph = timeline.graph
    ids: dict[int, list[int]] = {}
    number = 0
    for op in np.flatnonzero(graph.rank == rank).tolist():
        parts = graph.parts(op).tolist()
        ids[op] = [*range(number, number + max(len(parts), 1))]
        number = ids[op][-1] + 1
    for op, own in ids.items():
        waits = dict.fromkeys(graph.waits(op).tolist())
        parts = graph.parts(op).tolist()
        for k, number in enumerate(own):
            node = Node(id=number, name=graph.names[graph.name[op]])
            node.data_deps.extend(one for wait in waits for one in ids[wait])
            if before[op] >= 0:
                node.ctrl_deps.extend(ids[before[op]])
            node.start_time_micros = max(round(timeline.start[op] * 1e6), 0)
            node.duration_micros = round((timeline.end[op] - timeline.start[op]) * 1e6)
            if parts:
                _communicate(node, graph, op, parts[k], members[parts[k]])
                row = graph.part_start[op] + k
                set_attributes(node, part=parts[k], tail=float(graph.part_tail[row]))
            else:
                _work(node, graph.op(op).work)
            if k == 0:
                set_attributes(node, **_own(timeline, op))
            else:
                set_attributes(node, first=own[0])
            yield node


def _work(node: Any, work: Work) -> None:
    """Set type and attributes of an op that does not communicate with simulated peers."""
    match work:
        case Compute():
            node.type = NODE_TYPES.index("COMP")
            set_attributes(node, num_ops=round(work.flops), tensor_size=round(work.bytes))
        case Copy():
            kind = "MEM_STORE" if work.direction == "d2h" else "MEM_LOAD"
            node.type = NODE_TYPES.index(kind)
            set_attributes(node, tensor_size=round(work.bytes))
        case _:
            node.type = NODE_TYPES.index("COMM_COLL" if dimension(work) else "COMP")
    set_attributes(node, is_cpu_op=getattr(work, "kind", "") == "host")


def _communicate(node: Any, graph: Graph, op: int, part: int, members: Sequence[int]) -> None:
    """Set type and attributes of a member of a part; of two members of a p2p the first sends."""
    work = graph.works[graph.part_work[part]]
    ranks = [int(graph.rank[member]) for member in members]
    p2p = isinstance(work, Communication) and work.collective == "p2p"
    if p2p or (len(members) == 2 and dimension(work) == "pp"):
        source, target = work.ranks if isinstance(work, Communication) else ranks
        sends = int(graph.rank[op]) == source
        node.type = NODE_TYPES.index("COMM_SEND" if sends else "COMM_RECV")
        set_attributes(node, comm_src=source, comm_dst=target, comm_tag=part)
    else:
        node.type = NODE_TYPES.index("COMM_COLL")
        group = list(work.ranks) if isinstance(work, Communication) else ranks
        set_attributes(node, pg_name="-".join(map(str, group)), comm_group=group)
        if isinstance(work, Communication):
            set_attributes(node, comm_type=COLLECTIVES.index(work.collective))
    size = work.bytes if isinstance(work, Communication) else 0.0
    set_attributes(node, is_cpu_op=False, comm_size=round(size), part_work=_text(work))


def _own(timeline: Timeline, op: int) -> dict[str, Any]:
    """Return what the schema has no field for."""
    graph = timeline.graph
    out: dict[str, Any] = {
        "op": op,
        "work": _text(graph.op(op).work),
        "stream": graph.streams[graph.stream[op]],
        "phase": PHASES[graph.phase[op]],
        "start_s": float(timeline.start[op]),
        "end_s": float(timeline.end[op]),
        "lag": float(graph.lag[op]),
    }
    for key in ("stage", "microbatch", "layer", "step"):
        out[key] = int(getattr(graph, key)[op])
    rows = slice(graph.wait_start[op], graph.wait_start[op + 1])
    lags: dict[int, float] = {}
    for wait, lag in zip(graph.wait_on[rows].tolist(), graph.wait_lag[rows].tolist(), strict=True):
        lags[wait] = max(lag, lags.get(wait, 0.0))
    if any(lags.values()):
        out["wait_lags"] = [*lags.values()]
    return out


def _text(work: Work) -> str:
    return orjson.dumps({"type": type(work).__name__, **work._asdict()}).decode()
