"""Files of Chakra execution traces as ops, before any relation between ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from schedules._input_error import InputError
from traces.chakra_schema import NODE_TYPES, attributes, read_nodes

SUFFIX = ".et"
_RANK = re.compile(r"([0-9]+)\.et")


@dataclass
class Op:
    """A node, or the nodes of an op with several parts."""

    rank: int
    name: str
    type: str
    waits: list[int]  # numbers of nodes of the same file
    start: float
    end: float
    has: dict[str, Any]  # attributes
    parts: list[dict[str, Any]] = field(default_factory=list)  # of each of its nodes, likewise


def recognises(path: Path) -> bool:
    """Whether the name ends in .et, or the folder holds such files."""
    if path.is_dir():
        return any(path.glob(f"*{SUFFIX}"))
    return path.suffix == SUFFIX


def files_of(path: Path) -> list[Path]:
    """The file, or those of a folder."""
    return sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]


def by_rank(files: Sequence[Path]) -> dict[int, Path]:
    """The rank of each file, from the number before .et; in order where there is none."""
    out: dict[int, Path] = {}
    for number, file in enumerate(files):
        found = _RANK.search(file.name)
        rank = int(found[1]) if found else number
        if rank in out:
            raise InputError(f"{out[rank]} and {file} are both of rank {rank}")
        out[rank] = file
    return out


def ops_of(path: Path, rank: int) -> dict[int, Op]:
    """The ops of a file by the number of their (first) node."""
    out: dict[int, Op] = {}
    first: dict[int, int] = {}
    try:
        with path.open("rb") as file:
            for node in read_nodes(file):
                has = attributes(node)
                if not 0 < node.type < len(NODE_TYPES):
                    raise InputError(f"node {node.id} has the unknown type {node.type}")
                if "first" in has:
                    first[node.id] = has["first"]
                    out[has["first"]].parts.append(has)
                elif NODE_TYPES[node.type] != "METADATA":
                    first[node.id] = node.id
                    out[node.id] = _op(node, has, rank)
    except (OSError, DecodeError, KeyError, ValueError) as error:
        raise InputError(f"{path} is not a Chakra trace that can be read: {error}") from error
    for op in out.values():
        op.waits = [*dict.fromkeys(first[one] for one in op.waits if one in first)]
    return out


def _op(node: Any, has: dict[str, Any], rank: int) -> Op:
    waits = [*node.data_deps] if "op" in has else [*node.data_deps, *node.ctrl_deps]
    start = has.get("start_s", node.start_time_micros / 1e6)
    end = has.get("end_s", start + node.duration_micros / 1e6)
    return Op(rank, node.name, NODE_TYPES[node.type], waits, start, end, has, [has])
