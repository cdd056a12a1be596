"""A collective or message as PyTorch writes it into the args of kernels and host events."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

COLLECTIVES = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "broadcast": "broadcast",
    "_broadcast_oop": "broadcast",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "send": "send",
    "recv": "recv",
    "wait": "wait",
}
"""What PyTorch calls a collective -> what it is called here; others keep their name."""


class Message(NamedTuple):
    """One collective, one message, or the wait for one."""

    collective: str
    group: str  # name of the process group, or the address of one; "" unknown
    description: str  # of the group, such as TENSOR_MODEL_PARALLEL_GROUP; "" unknown
    ranks: tuple[int, ...]  # of the group; () unknown
    size: int  # of the group; 0 unknown
    sequence: int  # of the collective on its group; -1 unknown
    source: int  # rank that sends, -1 unless it is a message
    target: int
    elements: int  # that each rank gives; -1 unknown


def message(args: dict[str, Any]) -> Message:
    """What the args of a kernel or of ``record_param_comms`` tell.

    A list of ranks that was cut ("[0, 1, ..., 63]") counts as unknown: the group's name says more.
    """
    concrete = _list(args.get("Concrete Inputs"))
    name = str(args.get("Collective name", ""))
    group = args.get("Process Group Name")
    sequence = args.get("Seq")
    size = args.get("Group size", 0)
    if concrete:
        sequence, group, name, size = _positions(concrete, sequence, group, name, size)
    description = str(args.get("Process Group Description") or "")
    return Message(
        COLLECTIVES.get(name, name),
        str(group) if group is not None else "",
        "" if description == "undefined" else description,
        _ranks(args.get("Process Group Ranks")),
        _int(size, 0),
        _int(sequence, -1),
        _int(args.get("Src Rank"), -1),
        _int(args.get("Dst Rank"), -1),
        _int(args.get("In msg nelems"), -1),
    )


def _positions(
    concrete: list[Any], sequence: Any, group: Any, name: str, size: Any
) -> tuple[Any, Any, str, Any]:
    """What only the order of arguments tells: (tensors, sequence, group, ...), or without tensors.

    Until PyTorch 2.2 nothing else names the collective. One without tensors is a wait.
    """
    waits = len(concrete) in (7, 8) and str(concrete[0]).strip("-").isdigit()
    first = 0 if waits else 1
    if len(concrete) <= first + 1:
        return sequence, group, name, size
    sequence = concrete[first] if sequence is None else sequence
    if group is None and not waits:
        group = concrete[first + 1]
        size = size or concrete[-1]
    return sequence, group, name or ("wait" if waits else ""), size


def _ranks(of: Any) -> tuple[int, ...]:
    """Ranks of a list or of the text of one; () when it was cut.

    >>> _ranks("[0, 1, 2]"), _ranks([4, 5]), _ranks("[0, 1, ..., 63]")
    ((0, 1, 2), (4, 5), ())
    """
    if isinstance(of, (list, tuple)):
        return tuple(int(rank) for rank in of)
    text = str(of or "")
    return () if "..." in text else tuple(int(rank) for rank in re.findall(r"\d+", text))


def _list(of: Any) -> list[Any]:
    if isinstance(of, str):
        try:
            of = json.loads(of)
        except json.JSONDecodeError:
            return []
    return of if isinstance(of, list) else []


def _int(of: Any, unless: int) -> int:
    text = str(of)
    return int(text) if re.fullmatch(r"-?\d+", text) else unless
