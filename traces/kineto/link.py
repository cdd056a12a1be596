"""Finds which call launched each GPU op, and which collective each communication kernel is."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from traces.kineto.message import COLLECTIVES, CommunicationRecord
from traces.kineto.rank import Annotation, GpuOp, Posted, RankRows

_NOTHING = CommunicationRecord("", "", "", (), 0, -1, -1, -1, -1)
_RANK = re.compile("[0-9]{1,9}")
_KERNELS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "AllToAll": "all_to_all",
    "SendRecv": "",  # a message or an all-to-all: the name does not tell which
}


def launches(trace: RankRows) -> list[int]:
    """Return, per GPU op, the row of the call with its correlation; -1 if the window has none.

    Of several calls with one correlation the first counts; a graph launches many ops with one.
    """
    by_correlation: dict[int, int] = {}
    for row, call in enumerate(trace.calls):
        if call.correlation > 0:
            by_correlation.setdefault(call.correlation, row)
    return [
        by_correlation.get(op.correlation, -1) if op.correlation > 0 else -1 for op in trace.gpu
    ]


class Enclosing:
    """Finds the innermost of some events on a host thread around an instant."""

    def __init__(self, rows: Iterable[Posted | Annotation]) -> None:
        self._rows: dict[int, list[Posted | Annotation]] = defaultdict(list)
        for row in rows:  # sorted by start
            self._rows[row.thread].append(row)
        self._starts = {thread: [row.start for row in of] for thread, of in self._rows.items()}

    def __call__(self, thread: int, instant: int, deep: int = 8) -> Posted | Annotation | None:
        """Return the last event begun before ``instant`` and not over; look ``deep`` rows back."""
        k = bisect_right(self._starts.get(thread, []), instant)
        for row in reversed(self._rows[thread][max(k - deep, 0) : k] if k else []):
            if instant <= row.end:
                return row
        return None


def messages(trace: RankRows, launch: Sequence[int]) -> list[tuple[CommunicationRecord, ...]]:
    """Return what every communication kernel does, from its args or from around its launch.

    Usually that is one message. ``batch_isend_irecv`` posts several and then launches one kernel
    for them. Sequence numbers that only the host's event has are added. What is no communication
    has ().
    """
    around, marks = posts(trace, launch), Enclosing(m for m in trace.marks if "nccl:" in m.name)
    out: list[tuple[CommunicationRecord, ...]] = []
    for op, row in zip(trace.gpu, launch, strict=True):
        if not communicates(op):
            out.append(())
            continue
        call = trace.calls[row] if row >= 0 else None
        named = marks(call.thread, call.start) if call else None
        mark = named.name if isinstance(named, Annotation) else ""
        hosts = around.get(row) or [_NOTHING]
        if len(hosts) > 1 and not (op.message and op.message.source >= 0):
            out.append(tuple(_resolved(trace, op._replace(message=None), h, "") for h in hosts))
        else:
            out.append((_resolved(trace, op, hosts[-1], mark),))
    return out


def communicates(op: GpuOp) -> bool:
    """Return whether something on the GPU is communication."""
    return op.kind == "communication" or op.message is not None


def posts(trace: RankRows, launch: Sequence[int]) -> dict[int, list[CommunicationRecord]]:
    """Return, per launching call, its collectives: the one around it, or all messages since.

    "Since" means since the launch of communication before it, on its thread.
    """
    rows = {row for op, row in zip(trace.gpu, launch, strict=True) if row >= 0 and communicates(op)}
    events: list[tuple[int, int, int]] = [(trace.calls[row].start, 1, row) for row in rows]
    events += [
        (p.start, 0, k) for k, p in enumerate(trace.posted) if p.message.collective != "wait"
    ]
    since: dict[int, list[Posted]] = defaultdict(list)
    out: dict[int, list[CommunicationRecord]] = {}
    for at, is_launch, row in sorted(events):
        if not is_launch:
            since[trace.posted[row].thread].append(trace.posted[row])
            continue
        pending = since[trace.calls[row].thread]
        within = [p for p in pending if at <= p.end][-1:]
        messages = [p for p in pending if p.message.collective in ("send", "recv")]
        out[row] = [p.message for p in within or messages]
        pending.clear()
    return out


def _resolved(
    trace: RankRows, op: GpuOp, host: CommunicationRecord, mark: str
) -> CommunicationRecord:
    """Combine what kernel, host event and annotation tell."""
    own = op.message or host
    pairs = zip(own._fields, own, _NOTHING, host, strict=True)
    more: dict[str, Any] = {key: theirs for key, mine, no, theirs in pairs if mine == no}
    both = own._replace(**more)
    ranks = trace.groups.get(both.group) or both.ranks  # the list in the args may have been cut
    size = len(ranks) or both.size
    called = both.collective or _collective(op.name, mark)
    source, target = both.source, both.target
    if called in ("send", "recv") and source < 0:
        source, target = _ends(mark)
    return both._replace(
        collective=called, ranks=ranks, size=size, source=source, target=target,
        dimension=op.dimension,
    )  # fmt: skip


def _collective(kernel: str, mark: str) -> str:
    """Return the collective of an annotation such as ``nccl:all_to_all``, or of a kernel's name."""
    called = mark.removeprefix("nccl:").split(" ")[0].lstrip("_")
    if called and called != "coalesced":
        return COLLECTIVES.get(called, COLLECTIVES.get(f"_{called}", called))
    return next((to for of, to in _KERNELS.items() if of in kernel), "")


def _ends(mark: str) -> tuple[int, int]:
    """Return sender and receiver of ``nccl:send 0->1`` or ``nccl:recv 1<-0``; -1, -1 otherwise."""
    text = mark.partition(" ")[2]
    for arrow, turned in (("->", False), ("<-", True)):
        one, found, two = text.partition(arrow)
        if found and _RANK.fullmatch(one.strip()) and _RANK.fullmatch(two.strip()):
            pair = int(one), int(two)
            return pair[::-1] if turned else pair
    return -1, -1
