"""A collective or message as PyTorch writes it into the args of kernels and host events."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from traces.kineto.fields import get

_WHOLE = re.compile(r"-?[0-9]{1,18}")

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
"""PyTorch's name of a collective -> the name here; others keep their name."""


class CommunicationRecord(NamedTuple):
    """One collective, one message, or the wait for one."""

    collective: str
    group: str  # name of the process group, or the address of one; "" unknown
    description: str  # of the group, such as TENSOR_MODEL_PARALLEL_GROUP; "" unknown
    ranks: tuple[int, ...]  # of the group; () unknown
    size: int  # of the group; 0 unknown
    sequence: int  # of the collective on its group; -1 unknown
    source: int  # rank that sends, -1 unless it is a message
    target: int
    elements: int  # how many each rank gives; -1 unknown
    dimension: str = ""  # whose traffic it is, as the kernel's name tells; "" if it does not


def message(args: dict[str, Any]) -> CommunicationRecord:
    """Read the args of a kernel or of ``record_param_comms``.

    A list of ranks that was cut ("[0, 1, ..., 63]") counts as unknown: the group's name says more.
    """
    concrete = get(args, "Concrete Inputs")
    name, group = get(args, "Collective name"), get(args, "Process Group Name")
    sequence, size = get(args, "Seq"), max(get(args, "Group size"), 0)
    if concrete:
        sequence, group, name, size = _positions(concrete, sequence, group, name, size)
    description = get(args, "Process Group Description")
    return CommunicationRecord(
        COLLECTIVES.get(name, name),
        group,
        "" if description == "undefined" else description,
        get(args, "Process Group Ranks"),
        size,
        sequence,
        get(args, "Src Rank"),
        get(args, "Dst Rank"),
        get(args, "In msg nelems"),
    )


def _positions(
    concrete: list[str], sequence: int, group: str, name: str, size: int
) -> tuple[int, str, str, int]:
    """Read what only the order of arguments tells: (tensors, sequence, group, ...), or no tensors.

    Until PyTorch 2.2 nothing else names the collective. One without tensors is a wait.
    """
    waits = len(concrete) in (7, 8) and _WHOLE.fullmatch(concrete[0]) is not None
    first = 0 if waits else 1
    if len(concrete) <= first + 1:
        return sequence, group, name, size
    sequence = _int(concrete[first], -1) if sequence < 0 else sequence
    if not group and not waits:
        group = concrete[first + 1]
        size = size or max(_int(concrete[-1], 0), 0)
    return sequence, group, name or ("wait" if waits else ""), size


def _int(of: str, unless: int) -> int:
    return int(of) if _WHOLE.fullmatch(of) else unless
