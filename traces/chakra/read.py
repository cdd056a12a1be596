"""Reads Chakra execution traces into recordings: those of :mod:`traces.chakra.write`, and others.

In files that others wrote, members of a collective are matched by process group, collective and
order; sends and receives by source, target, tag and order. A node with a duration is work of that
duration; one without is the arithmetic or communication that its attributes describe. Nodes run in
order of start and number, as far as their dependencies allow, on a stream for each kind (compute,
communication, copies, host). Nodes of metadata are left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from schedules.input_error import InputError
from sim.graph import Builder, Communication, Compute, Copy, Fixed, Work
from sim.timeline import Timeline
from traces import cut
from traces.chakra.nodes import OpNodes, by_rank, files_of, ops_of, recognises
from traces.chakra.schema import COLLECTIVES
from traces.recording import Recording, Report, Selection

__all__ = ["read", "recognises"]


def read(paths: Sequence[Path], selection: Selection, report: Report) -> Recording:
    """Read the traces of all ranks. Raises InputError for a broken file, or two of one rank."""
    files = [file for path in paths for file in files_of(path)]
    ranks = by_rank(files)
    found: dict[tuple[int, int], OpNodes] = {}
    for number, (rank, file) in enumerate(sorted(ranks.items())):
        report("reading", number, len(files))
        found |= {(rank, node): op for node, op in ops_of(file, rank).items()}
    if not found:
        raise InputError(f"{paths[0]} holds no nodes")
    said = _without_times(found)
    timeline = _timeline(found)
    if selection.step is not None:
        timeline = cut.of_step(timeline, selection.step, paths[0])
    timeline = cut.select(timeline, selection)
    return Recording(timeline, "chakra", tuple(files), cut.counts(timeline.graph), said)


def _without_times(found: dict[tuple[int, int], OpNodes]) -> tuple[str, ...]:
    """Return a warning if nodes have sizes but no duration, as generated workloads do."""
    some = [op for op in found.values() if "op" not in op.has and _sized(op)]
    lacking = [op for op in some if op.end <= op.start]
    if not lacking:
        return ()
    if all(op.end <= op.start for op in found.values()):
        return (
            "times are missing: no node has a duration, only sizes, so nothing here takes time; "
            "use a recorded trace, or a recipe that simulates the sizes",
        )
    return (
        f"times are missing: {len(lacking):,} of {len(some):,} nodes with sizes have no duration, "
        "and take no time here",
    )


def _sized(op: OpNodes) -> bool:
    return any(op.has.get(key) for key in ("num_ops", "tensor_size", "comm_size"))


def _timeline(found: dict[tuple[int, int], OpNodes]) -> Timeline:
    builder = Builder()
    index: dict[tuple[int, int], int] = {}
    parts: defaultdict[Any, list[tuple[int, float]]] = defaultdict(list)
    works: dict[Any, Work] = {}
    seen: Counter[Any] = Counter()
    order = _order(found)
    for key in order:
        op = found[key]
        index[key] = i = _add(builder, op)
        for has in op.parts:
            part = _part(op, has)
            if part is None:
                continue
            seen[key[0], part] += 1
            member = (part, 0 if part[0] == "part" else seen[key[0], part])
            parts[member].append((i, has.get("tail", 0.0)))
            works[member] = _shorter(works.get(member), _part_work(op, has))
    for key in order:
        op = found[key]
        for k, wait in enumerate(op.waits):
            lags = op.has.get("wait_lags", ())
            builder.wait(index[key], index[key[0], wait], lags[k] if lags else 0.0)
    for member in sorted(parts, key=lambda of: (of[0][0], of)) if _ours(found) else parts:
        work, of = works[member], parts[member]
        if isinstance(work, Communication) and not work.ranks:
            work = work._replace(ranks=tuple(order[i][0] for i, _ in of))
        builder.join([i for i, _ in of], work, [tail for _, tail in of])
    start, end = (
        np.array([getattr(found[key], side) for key in order]) for side in ("start", "end")
    )
    return Timeline(builder.graph(), start, end)


def _ours(found: dict[tuple[int, int], OpNodes]) -> bool:
    return all("op" in op.has for op in found.values())


def _order(found: dict[tuple[int, int], OpNodes]) -> list[tuple[int, int]]:
    """Return the order in which ops were numbered, or one in which none precedes its needs."""
    if _ours(found):
        return sorted(found, key=lambda key: found[key].has["op"])
    needs: nx.DiGraph[tuple[int, int]] = nx.DiGraph()
    needs.add_nodes_from(found)
    needs.add_edges_from(((key[0], wait), key) for key, op in found.items() for wait in op.waits)
    try:
        return [
            *nx.lexicographical_topological_sort(
                needs, key=lambda key: (key[0], found[key].start, key[1])
            )
        ]
    except nx.NetworkXUnfeasible:
        raise InputError("the trace's nodes depend on each other in a circle") from None


def _add(builder: Builder, op: OpNodes) -> int:
    has = op.has
    return builder.add(
        op.name,
        op.rank,
        has.get("stream", _stream(op)),
        _work(op),
        phase=has.get("phase", ""),
        stage=has.get("stage", -1),
        microbatch=has.get("microbatch", -1),
        layer=has.get("layer", -1),
        step=has.get("step", 0),
        lag=has.get("lag", 0.0),
    )


def _stream(op: OpNodes) -> str:
    if op.type.startswith("COMM"):
        return op.type.lower()
    if op.has.get("is_cpu_op", False):
        return "host"
    return "compute" if op.type == "COMP" else op.type.lower()


def _work(op: OpNodes) -> Work:
    """Return what the op does: as we wrote it, or as attributes and duration say."""
    has, seconds = op.has, op.end - op.start
    if "work" in has:
        work: Work = has["work"]
        return work
    if op.type.startswith("COMM"):
        return _part_work(op, has)
    if seconds > 0:
        sort = {"COMP": "compute", "MEM_LOAD": "copy", "MEM_STORE": "copy"}.get(op.type, "host")
        return Fixed(seconds, "host" if has.get("is_cpu_op", False) else sort)
    if op.type in ("MEM_LOAD", "MEM_STORE"):
        return Copy(float(has.get("tensor_size", 0)), "h2d" if op.type == "MEM_LOAD" else "d2h")
    return Compute("gemm", float(has.get("num_ops", 0)), float(has.get("tensor_size", 0)))


def _part(op: OpNodes, has: dict[str, Any]) -> Any:
    """Return what the members of a communication share, apart from their order; None for others."""
    if "part" in has:
        return ("part", has["part"])
    if op.type == "COMM_COLL" and "op" not in has:
        return ("group", str(has.get("pg_name", "")), int(has.get("comm_type", 0)))
    if op.type in ("COMM_SEND", "COMM_RECV"):
        source, target = _ends(op, has)
        return ("p2p", source, target, str(has.get("comm_tag", 0)))
    return None


def _shorter(one: Work | None, other: Work) -> Work:
    """Return the shorter of two recorded times of one communication: it has no waiting."""
    if isinstance(one, Fixed) and isinstance(other, Fixed):
        return min(one, other, key=lambda work: work.seconds)
    return one or other


def _ends(op: OpNodes, has: dict[str, Any]) -> tuple[int, int]:
    sends = op.type == "COMM_SEND"
    source = has.get("comm_src", op.rank if sends else -1)
    target = has.get("comm_dst", -1 if sends else op.rank)
    return int(source), int(target)


def _part_work(op: OpNodes, has: dict[str, Any]) -> Work:
    if "part_work" in has:
        work: Work = has["part_work"]
        return work
    if op.end > op.start:
        return Fixed(op.end - op.start, "communication", str(has.get("pg_name", "")))
    size = float(has.get("comm_size", 0))
    if op.type != "COMM_COLL":
        return Communication("p2p", size, _ends(op, has), "pp")
    group = tuple(has.get("comm_group", ()))
    return Communication(COLLECTIVES[int(has.get("comm_type", 0))], size, group, "communication")
