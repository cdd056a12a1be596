"""Reads one rank's profiler trace of a CPU run: operators of its main thread, collectives, marks.

Instants are nanoseconds of the host's clock, which all ranks share: events count from
``baseTimeNanoseconds`` of their file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from schedules.input_error import InputError
from sim.graph import Longs
from traces.packed import content

Shapes = tuple[tuple[int, ...], ...]
_BYTES = {
    "double": 8, "int64_t": 8, "long int": 8, "long": 8, "float": 4, "int": 4,
    "c10::BFloat16": 2, "c10::Half": 2, "signed char": 1, "unsigned char": 1, "bool": 1,
}  # fmt: skip
_CALLED = {
    "_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
}  # fmt: skip  # gloo does these as another collective
_NAMES = {"send": "p2p", "recv": "p2p", "all_to_all_single": "all_to_all", "alltoall": "all_to_all",
          "allreduce": "all_reduce", "allgather": "all_gather"}  # fmt: skip

Event = Mapping[str, Any]


class Mark(NamedTuple):
    """One collective, or a barrier, of one rank."""

    collective: str
    bytes: float  # of the whole buffer
    start: int
    end: int
    called: str = ""  # gloo's name


@dataclass(frozen=True, eq=False)
class RankTrace:
    """What one rank's file says about its main thread and about gloo."""

    rank: int
    world: int
    names: Sequence[str]  # those of the main thread's operators, in the order of their begins
    shapes: Sequence[Shapes]
    start: Longs
    end: Longs
    collectives: Sequence[Mark]  # in the order of their begins, as are the barriers
    barriers: Sequence[Mark]
    updates: Sequence[tuple[str, int, int]]  # name, begin, end of Optimizer.step and zero_grad


def read(path: Path) -> tuple[RankTrace, bytes]:
    """Read a trace and its bytes. Raises InputError for what is no trace of a rank on a CPU."""
    try:
        text = content(path)
        file = orjson.loads(text)
        base, about = int(file.get("baseTimeNanoseconds", 0)), file["distributedInfo"]
        events = sorted(
            (e for e in file["traceEvents"] if e.get("ph") == "X" and "ts" in e),
            key=lambda e: (e["ts"], -e.get("dur", 0)),
        )
        return _trace(events, base, int(about["rank"]), int(about["world_size"])), text
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not a profiler trace of a distributed run: {error!r}; "
            "give one that was recorded with record_shapes after init_process_group"
        ) from error


def _trace(events: Sequence[Event], base: int, rank: int, world: int) -> RankTrace:
    ops = [e for e in events if e.get("cat") == "cpu_op"]
    if not ops:
        raise KeyError("cpu_op")
    main = _main(ops)
    mine = [e for e in ops if e["tid"] == main]
    spans = np.array([_span(e, base) for e in mine], np.int64).reshape(-1, 2)
    marks = [*_marks(events, mine, base, world)]
    updates = [
        (str(e["name"]), *_span(e, base))
        for e in events
        if e.get("cat") == "user_annotation" and str(e["name"]).startswith("Optimizer.")
    ]
    return RankTrace(
        rank, world, [str(e["name"]) for e in mine], [shapes(e.get("args", {})) for e in mine],
        spans[:, 0], spans[:, 1],
        [mark for mark in marks if mark.collective != "barrier"],
        [mark for mark in marks if mark.collective == "barrier"],
        updates,
    )  # fmt: skip


def _main(ops: Sequence[Event]) -> Any:
    """Return the thread that calls for collectives, or else the one with most operators."""
    calls = Counter(e["tid"] for e in ops if _calls(e))
    return (calls or Counter(e["tid"] for e in ops)).most_common(1)[0][0]


def _calls(event: Event) -> bool:
    return str(event["name"]).startswith("c10d::")


def _span(event: Event, base: int) -> tuple[int, int]:
    """Return begin and end in nanoseconds; the trace has microseconds with three decimals."""
    start = base + round(event["ts"] * 1e3)
    return start, start + round(event.get("dur", 0) * 1e3)


def _marks(events: Sequence[Event], main: Sequence[Event], base: int, world: int) -> Iterator[Mark]:
    """Yield what gloo did; its calls come in order, which tells an all-reduce by another name."""
    found = [e for e in events if str(e.get("name")).startswith("gloo:")]
    calls = [str(e["name"]).removeprefix("c10d::") for e in main if _calls(e)]
    known = len(calls) == len(found)
    for k, e in enumerate(found):
        said = str(e["name"]).removeprefix("gloo:")
        name = _CALLED.get(calls[k] if known else "", _NAMES.get(said, said))
        size = _bytes(e.get("args", {})) * (world if name == "all_gather" else 1)
        yield Mark(name, size, *_span(e, base), said)


def _bytes(args: Event) -> float:
    kinds = args.get("Input type") or []
    width = _BYTES.get(kinds[0] if kinds else "", 4)
    return float(width * sum(math.prod(shape) for shape in shapes(args)))


def shapes(args: Event) -> Shapes:
    """Return the shapes of the tensors that an operator was given, lists of them flattened.

    >>> shapes({"Input Dims": [[[2], [3, 4]], [], []], "Input type": ["TensorList", "Scalar", ""]})
    ((2,), (3, 4))
    """
    dims = args.get("Input Dims") or []
    kinds = args.get("Input type") or ["float"] * len(dims)
    out: list[tuple[int, ...]] = []
    for of, kind in zip(dims, kinds, strict=False):
        if of and isinstance(of[0], list):
            out += [tuple(one) for one in of]
        elif kind not in ("", "Scalar", "ScalarList"):
            out.append(tuple(of))
    return tuple(out)
