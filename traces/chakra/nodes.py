"""Reads files of Chakra execution traces as ops, before any relation between ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from google.protobuf.message import DecodeError

from schedules.input_error import InputError
from sim.graph import PHASES, Work
from traces.chakra.schema import COLLECTIVES, NODE_TYPES, attributes, read_nodes
from traces.checked import (
    COUNT,
    FLAG,
    LABEL,
    NUMBER,
    POSITIVE,
    SHORT,
    TEXT,
    WHOLE,
    FieldKind,
    check,
    described,
    list_of,
    one_of,
)
from traces.own.read import work_of

SUFFIX = ".et"
_RANK = re.compile(r"([0-9]{1,9})\.et")
WORKS = {"work", "part_work"}
"""Attributes that hold a work as JSON."""
_TYPES: dict[str, FieldKind] = {
    "op": COUNT, "first": COUNT, "part": COUNT, "tail": NUMBER, "stream": TEXT, "start_s": NUMBER,
    "end_s": NUMBER, "phase": one_of(PHASES), "stage": SHORT, "microbatch": WHOLE, "layer": SHORT,
    "step": COUNT, "lag": NUMBER, "wait_lags": list_of(NUMBER), "work": TEXT, "part_work": TEXT,
    "is_cpu_op": FLAG, "num_ops": POSITIVE, "tensor_size": POSITIVE, "comm_size": POSITIVE,
    "comm_type": FieldKind("a number of a CommType", lambda of: of in [*range(len(COLLECTIVES))]),
    "comm_src": WHOLE, "comm_dst": WHOLE, "comm_tag": LABEL, "pg_name": LABEL,
    "comm_group": list_of(COUNT),
}  # fmt: skip
FIELDS = {key: kind.or_none() for key, kind in _TYPES.items()}
"""The type of each attribute that is read."""


@dataclass
class OpNodes:
    """A node, or the nodes of an op with several parts."""

    rank: int
    name: str
    type: str
    waits: list[int]  # numbers of nodes of the same file
    start: float
    end: float
    has: dict[str, Any]  # attributes
    parts: list[dict[str, Any]] = field(default_factory=list)  # attributes of each of its nodes


def recognises(path: Path) -> bool:
    """Return whether the name ends in .et, or the folder holds such files."""
    if path.is_dir():
        return any(path.glob(f"*{SUFFIX}"))
    return path.suffix == SUFFIX


def files_of(path: Path) -> list[Path]:
    """Return the file, or those of a folder."""
    return sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]


def by_rank(files: Sequence[Path]) -> dict[int, Path]:
    """Return the rank of each file, from the number before .et; in order where there is none."""
    out: dict[int, Path] = {}
    for number, file in enumerate(files):
        found = _RANK.search(file.name)
        rank = int(found[1]) if found else number
        if rank in out:
            raise InputError(f"{out[rank]} and {file} are both of rank {rank}")
        out[rank] = file
    return out


def ops_of(path: Path, rank: int) -> dict[int, OpNodes]:
    """Return the ops of a file by the number of their (first) node."""
    out: dict[int, OpNodes] = {}
    first: dict[int, int] = {}
    try:
        with path.open("rb") as file:
            for node in read_nodes(file):
                _take(node, rank, out, first)
    except (OSError, DecodeError, InputError) as error:
        raise InputError(f"{path} is not a Chakra trace that can be read: {error}") from error
    for number, op in out.items():
        op.waits = [*dict.fromkeys(first[one] for one in op.waits if one in first)]
        if len(op.has.get("wait_lags", op.waits)) != len(op.waits):
            raise InputError(f"{path}: node {number} does not have a wait_lag for each wait")
    return out


def _take(node: Any, rank: int, out: dict[int, OpNodes], first: dict[int, int]) -> None:
    """Add what a node says. Raises InputError, naming node and field, for a wrong type."""
    where, has = f"node {node.id}", attributes(node)
    if not 0 < node.type < len(NODE_TYPES):
        raise InputError(f"{where} has the unknown type {node.type}")
    if node.id in first:
        raise InputError(f"{where} is there twice")
    check(has, FIELDS, where)
    for key in WORKS & has.keys():
        has[key] = _work(has[key], f"{where}: {key}")
    if "first" in has:
        if has["first"] not in out:
            raise InputError(f"{where} belongs to node {has['first']}, which is not before it")
        first[node.id] = has["first"]
        out[has["first"]].parts.append(has)
    elif NODE_TYPES[node.type] != "METADATA":
        first[node.id] = node.id
        out[node.id] = _op(node, has, rank)


def _work(text: str, where: str) -> Work:
    """Return a work from our JSON. Raises InputError."""
    try:
        return work_of(orjson.loads(text))
    except (InputError, orjson.JSONDecodeError) as error:
        raise InputError(f"{where} is {described(text)}, which is no work: {error}") from error


def _op(node: Any, has: dict[str, Any], rank: int) -> OpNodes:
    waits = [*node.data_deps] if "op" in has else [*node.data_deps, *node.ctrl_deps]
    start = has.get("start_s", node.start_time_micros / 1e6)
    end = has.get("end_s", start + node.duration_micros / 1e6)
    if end < start:
        raise InputError(f"node {node.id} ends before it starts")
    return OpNodes(rank, node.name, NODE_TYPES[node.type], waits, start, end, has, [has])
