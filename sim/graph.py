"""What has to be done: operations in columns, and which of them wait for which.

Nothing here knows how long anything takes. An operation (op) is one kernel, copy or host call on
one stream of one rank; it is known by its index, so what a run finds out about each (its start, its
end) is a plain array in the same order. Exactly three relations hold between ops:

- *stream order*: the ops of one (rank, stream) run one after another, in index order;
- *waits*: op i starts only after those ops ended (CUDA events), plus a lag;
- *parts*: a collective, or a send with its receive, is one op per rank. Those ops share a part; no
  part moves data before all its ops have started, and it ends for all together, plus a tail. An op
  with several parts (a batched send and receive) ends with its last part.

Lags and tails serve recorded runs and are zero in graphs that are built.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.html import table

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]

PHASES = ("", "F", "R", "I", "W", "O", "B")
"""The part of training that an op belongs to: forward, recomputed forward, input gradient, weight
gradient, optimizer, or the whole backward where one op stands for all of it."""


class Compute(NamedTuple):
    """Arithmetic on one GPU, with the bytes that it moves to and from that GPU's memory."""

    kind: str  # gemm, attention, norm, elementwise, softmax, embedding, cross_entropy, optimizer
    flops: float
    bytes: float
    shape: tuple[int, ...] = ()  # gemm: (batch, m, n, k); attention: (batch, heads, s_q, s_k, dim)
    dtype: str = "bf16"
    by: str = ""  # which of several kernels does it: for attention flash2, cudnn, ...


class Communication(NamedTuple):
    """Communication between GPUs, described as a collective of torch.distributed.

    ``bytes`` is the size of the whole buffer: the message of a p2p, the gradients of an all_reduce,
    the full (gathered) tensor of an all_gather or reduce_scatter. ``ranks`` are all ranks of the
    group, simulated or folded away; for p2p (source, target).
    """

    collective: str  # all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, p2p
    bytes: float
    ranks: tuple[int, ...]
    dimension: str  # the parallel dimension that it serves: tp, cp, ep, dp, pp, ...
    algorithm: str = "auto"


class Copy(NamedTuple):
    """A copy between host and device memory."""

    bytes: float
    direction: str  # h2d, d2h, d2d


class Host(NamedTuple):
    """Work of the CPU, limited by the bandwidth of host memory."""

    bytes: float
    kind: str = "host_adam"


class Fixed(NamedTuple):
    """Work of known duration in seconds, such as a kernel read from a trace."""

    seconds: float
    kind: str = "compute"  # or "communication"
    dimension: str = ""


T = TypeVar("T", bound=Hashable)
Work = Compute | Communication | Copy | Host | Fixed


class Op(NamedTuple):
    """One op as a readable row."""

    name: str
    rank: int
    stream: str
    work: Work
    phase: str = ""
    stage: int = -1
    microbatch: int = -1
    layer: int = -1


class Memory(NamedTuple):
    """A change of one rank's memory at an op's start or end, in bytes of one category."""

    category: str
    bytes: float  # negative: freed
    at: str  # "start" | "end"


def zeros(n: int) -> Floats:
    """Return a column of ``n`` zeros, shape (n,), that takes no memory and cannot be written to."""
    return np.broadcast_to(np.float64(0.0), (n,))


@dataclass(frozen=True, eq=False)
class Graph:
    """Ops in columns. Every column has one row per op, in issue order, unless it says otherwise."""

    names: tuple[str, ...]  # distinct kernel names
    works: tuple[Work, ...]  # distinct works
    streams: tuple[str, ...]  # distinct stream names; a stream is a (rank, stream) pair
    categories: tuple[str, ...]  # of memory
    name: Ints  # row of names
    work: Ints  # row of works
    rank: Ints
    stream: Ints  # row of streams
    phase: NDArray[np.int8]  # row of PHASES
    stage: NDArray[np.int16]  # pipeline stage (model chunk); -1: none, as in the next two columns
    microbatch: Ints
    layer: NDArray[np.int16]
    step: Ints  # training step, from 0; in a schedule without a flush, the weight update
    lag: Floats  # seconds after the previous op of the stream
    wait_start: Ints  # n + 1: op i waits for wait_on[wait_start[i]:wait_start[i + 1]]
    wait_on: Ints  # one row per wait: an op
    wait_lag: Floats  # one row per wait: seconds after that op's end
    part_start: Ints  # n + 1: op i takes part in part[part_start[i]:part_start[i + 1]]
    part: Ints  # one row per membership: a part
    part_tail: Floats  # one row per membership: seconds from the part's end to this member's end
    part_work: Ints  # one row per part: row of works
    memory_start: Ints  # n + 1: op i has memory rows memory_start[i]:memory_start[i + 1]
    memory_category: NDArray[np.int8]  # one row per change: row of categories
    memory_bytes: Floats  # one row per change; negative when freed
    memory_at_end: NDArray[np.bool_]  # one row per change: True at the op's end, False at its start
    persistent: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Bytes that stay allocated for the whole step, by rank and category."""
    stands_for: Mapping[int, int] = field(default_factory=dict)
    """How many ranks of the job a simulated rank stands for, where that is not 1."""

    def __len__(self) -> int:
        return len(self.work)

    def __repr__(self) -> str:
        """Return the line that a prompt shows."""
        return f"Graph: {len(self):,} ops on {len(self.ranks()):,} ranks"

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: how many ops, ranks, streams, ... there are."""
        rows = [
            ("ops", f"{len(self):,}"),
            ("ranks", f"{len(self.ranks()):,}"),
            ("streams", ", ".join([*self.streams[:6], "..."][: len(self.streams)])),
            ("distinct works, names", f"{len(self.works):,}, {len(self.names):,}"),
            ("waits", f"{len(self.wait_on):,}"),
            ("collectives and messages", f"{len(self.part_work):,}"),
            ("memory", f"{self.nbytes() / 2**20:.1f} MiB"),
        ]
        return table("Graph: what must happen", rows)

    def op(self, i: int) -> Op:
        """Return op ``i`` as a readable row."""
        return Op(
            self.names[self.name[i]],
            int(self.rank[i]),
            self.streams[self.stream[i]],
            self.works[self.work[i]],
            PHASES[self.phase[i]],
            int(self.stage[i]),
            int(self.microbatch[i]),
            int(self.layer[i]),
        )

    def waits(self, i: int) -> Ints:
        """Return the ops that must end before op ``i`` starts, without those of stream order."""
        return self.wait_on[self.wait_start[i] : self.wait_start[i + 1]]

    def parts(self, i: int) -> Ints:
        """Return the parts that op ``i`` is a member of."""
        return self.part[self.part_start[i] : self.part_start[i + 1]]

    def stream_order(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return all ops sorted by (rank, stream, index), and where each stream begins in them.

        The first array has shape (n,); the second has shape (k + 1,) for k streams and ends with n.
        """
        return self._stream_order

    @cached_property
    def _stream_order(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        key = self.rank.astype(np.int64) * len(self.streams) + self.stream
        order = ascending(key)
        begins = np.append(run_starts(key[order]), len(order))
        order.flags.writeable = begins.flags.writeable = False
        return order, begins

    def by_stream(self) -> Iterator[tuple[int, str, NDArray[np.int64]]]:
        """Yield (rank, stream, ops in issue order) for every stream that has ops."""
        order, begins = self.stream_order()
        for a, b in pairwise(begins):
            ops = order[a:b]
            yield int(self.rank[ops[0]]), self.streams[self.stream[ops[0]]], ops

    def ranks(self) -> NDArray[np.int32]:
        """Return the simulated ranks in ascending order."""
        return np.array(sorted({*self.rank[run_starts(self.rank)].tolist()}), np.int32)

    def rank_rows(self) -> NDArray[np.int64]:
        """Return for each op the row of its rank in :meth:`ranks`, shape (n,)."""
        begins = run_starts(self.rank)
        _, row = np.unique(self.rank[begins], return_inverse=True)
        return np.repeat(row, np.diff(begins, append=len(self)))

    def nbytes(self) -> int:
        """Return the bytes of memory that the columns take."""
        columns = (value for value in vars(self).values() if isinstance(value, np.ndarray))
        return sum(c.nbytes for c in columns if c.strides and c.strides[0])


class _Entries:
    """Waits or parts of ops, as columns: a recording has hundreds of thousands."""

    def __init__(self) -> None:
        self._op, self._number, self._seconds = array("i"), array("i"), array("d")

    def add(self, op: int, number: int, seconds: float) -> None:
        self._op.append(op)
        self._number.append(number)
        self._seconds.append(seconds)

    def columns(self, n: int) -> tuple[Ints, Ints, Floats]:
        """Return where each of ``n`` ops begins, and the entries by op, as they were added."""
        op = np.array(self._op, np.int32)
        order = ascending(op)
        number, seconds = np.array(self._number, np.int32), np.array(self._seconds, np.float64)
        return offsets(np.bincount(op, minlength=n)), number[order], seconds[order]


class Builder:
    """Collects ops one at a time, for small graphs, tests and recordings.

    >>> b = Builder()
    >>> first = b.add("a", rank=0, stream="compute", work=Fixed(5.0))
    >>> second = b.add("b", rank=0, stream="dp", work=Fixed(4.0), waits=[first])
    >>> graph = b.graph()
    >>> len(graph), graph.op(1).name, graph.waits(1).tolist()
    (2, 'b', [0])
    """

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._step: list[int] = []
        self._waits = _Entries()
        self._lag: list[float] = []
        self._parts = _Entries()
        self._part_work: list[Work] = []
        self._memory: list[Sequence[Memory]] = []
        self.persistent: dict[int, dict[str, float]] = {}

    def add(
        self,
        name: str,
        rank: int,
        stream: str,
        work: Work,
        waits: Sequence[int] = (),
        *,
        phase: str = "",
        stage: int = -1,
        microbatch: int = -1,
        layer: int = -1,
        step: int = 0,
        lag: float = 0.0,
        memory: Sequence[Memory] = (),
    ) -> int:
        """Issue an op on its stream after those issued there before, and return its index."""
        self._ops.append(Op(name, rank, stream, work, phase, stage, microbatch, layer))
        self._step.append(step)
        self._lag.append(lag)
        self._memory.append(memory)
        for earlier in waits:
            self._waits.add(len(self._ops) - 1, earlier, 0.0)
        return len(self._ops) - 1

    def wait(self, later: int, earlier: int, lag: float = 0.0) -> None:
        """Make op ``later`` start only after op ``earlier`` has ended, plus ``lag`` seconds.

        This is what a CUDA event does that one stream records and another waits for.
        """
        self._waits.add(range(len(self._ops))[later], earlier, lag)

    def join(
        self, members: Sequence[int], work: Work | None = None, tails: Sequence[float] = ()
    ) -> int:
        """Make one communication of these ops and return its part.

        Its work is that of the first member unless ``work`` is given. ``tails`` are the seconds
        from the part's end to each member's end.
        """
        part = len(self._part_work)
        self._part_work.append(self._ops[members[0]].work if work is None else work)
        for k, i in enumerate(members):
            self._parts.add(range(len(self._ops))[i], part, tails[k] if tails else 0.0)
        return part

    def graph(self) -> Graph:
        """Return the ops issued so far as a graph."""
        ops, n = self._ops, len(self._ops)
        names, name = _distinct([op.name for op in ops])
        works, work = _distinct([op.work for op in ops] + self._part_work)
        streams, stream = _distinct([op.stream for op in ops])
        changes = [change for row in self._memory for change in row]
        categories, category = _distinct([change.category for change in changes])
        wait_start, wait_on, wait_lag = self._waits.columns(n)
        part_start, part, part_tail = self._parts.columns(n)
        return Graph(
            names=names,
            works=works,
            streams=streams,
            categories=categories,
            name=name,
            work=work[:n],
            rank=np.array([op.rank for op in ops], np.int32),
            stream=stream,
            phase=np.array([PHASES.index(op.phase) for op in ops], np.int8),
            stage=np.array([op.stage for op in ops], np.int16),
            microbatch=np.array([op.microbatch for op in ops], np.int32),
            layer=np.array([op.layer for op in ops], np.int16),
            step=np.array(self._step, np.int32),
            lag=np.array(self._lag, np.float64),
            wait_start=wait_start,
            wait_on=wait_on,
            wait_lag=wait_lag,
            part_start=part_start,
            part=part,
            part_tail=part_tail,
            part_work=work[n:],
            memory_start=offsets([len(row) for row in self._memory]),
            memory_category=category.astype(np.int8),
            memory_bytes=np.array([change.bytes for change in changes], np.float64),
            memory_at_end=np.array([change.at == "end" for change in changes], np.bool_),
            persistent=self.persistent,
        )


def offsets(counts: Sequence[int] | NDArray[np.integer]) -> Ints:
    """Return where each row begins when rows of these lengths follow each other, shape (n + 1,)."""
    out = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=out[1:])
    return out


def owners(start: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the row that each entry belongs to, for rows that begin at ``start``, shape (n + 1,).

    So it gives the op of each wait, or the op of each part.

    >>> owners(offsets([2, 0, 1])).tolist()
    [0, 0, 2]
    """
    counts = np.diff(start)
    some = np.flatnonzero(counts)
    return np.repeat(some, counts[some])


def ascending(key: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the rows in ascending order of their key, none of which is negative; ties by row."""
    if key.max(initial=0) < 2**16:
        key = key.astype(np.uint16)  # sorted several times faster
    return np.argsort(key, kind="stable")


def run_starts(column: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return the rows at which runs of equal values begin.

    >>> run_starts(np.array([3, 3, 5, 3])).tolist()
    [0, 2, 3]
    """
    first = np.ones(min(len(column), 1), np.bool_)
    return np.flatnonzero(np.append(first, column[1:] != column[:-1]))


def _distinct(values: Sequence[T]) -> tuple[tuple[T, ...], Ints]:
    table: dict[T, int] = {}
    rows = np.array([table.setdefault(value, len(table)) for value in values], np.int32)
    return tuple(table), rows
