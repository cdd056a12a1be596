"""Measures what is no kernel of a model: launches, copies by size, messages, all-reduces."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from traces.record.plan import Row, measured
from traces.record.sweep_time import LEAST_RUNS, issue, spread
from traces.record.workers import Here

KERNELS = 500  # fewer than the queue of a stream holds
IN_A_ROW = 10  # messages or all-reduces in a row, so that launches do not show


def launch(here: Here, until: float) -> Iterator[dict[str, Any]]:
    """Yield small kernels issued one after another: the host's time for each, and the device's."""
    import torch

    x = torch.zeros(1, device=here.device)

    def many() -> None:
        for _ in range(KERNELS):
            x.add_(1.0)

    many()
    facts = {"what": "kernel", "issued_s": issue(here, many) / KERNELS, "kernels": KERNELS}
    yield from measured(here, [Row(facts, many, 10, repeat=1, shares=KERNELS, joined=True)], until)
    if here.device != "cpu":
        yield {"what": "event round trip", **_round_trip()}


def _round_trip() -> dict[str, Any]:
    """Return the host's time from recording an event on an idle stream to having waited for it."""
    import torch

    times = []
    for _ in range(100):
        event = torch.cuda.Event()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        event.record()
        event.synchronize()
        times.append(time.perf_counter() - begin)
    return spread(times[10:])


def memory(here: Here) -> Iterator[Row]:
    """Yield copies by size, within the device and between it and the host's pinned memory."""
    on_gpu = here.device != "cpu"
    for exponent in range(12, 31 if on_gpu else 27, 2):
        for way in ("d2d", "h2d", "d2h") if on_gpu else ("d2d",):
            if way == "d2d" or exponent <= 28:  # pinning a GiB takes longer than copying it
                copy = _copy(here, way, 1 << exponent)
                yield Row({"way": way, "bytes": 1 << exponent}, copy)


def _copy(here: Here, way: str, size: int) -> Any:
    """Return a function that copies random bytes."""
    import torch

    places: dict[str, dict[str, Any]] = {
        "d": {"device": here.device},
        "h": {"device": "cpu", "pin_memory": here.device != "cpu"},
    }
    source, target = (torch.empty(size, dtype=torch.uint8, **places[way[i]]) for i in (0, 2))
    source.copy_(torch.empty(size, dtype=torch.uint8, device=here.device).random_())
    return lambda: target.copy_(source, non_blocking=True)


def p2p(here: Here) -> Iterator[Row]:
    """Yield half the round trip of a message between ranks 0 and 1, by size."""
    import torch
    import torch.distributed as dist

    for exponent in range(2, 25, 2):
        tensor = torch.zeros(1 << exponent, dtype=torch.uint8, device=here.device)

        def round_trip(tensor: Any = tensor) -> None:
            if here.rank == 0:
                dist.send(tensor, 1)
                dist.recv(tensor, 1)
            elif here.rank == 1:
                dist.recv(tensor, 0)
                dist.send(tensor, 0)

        dist.barrier()
        yield Row({"bytes": 1 << exponent}, round_trip, 20, 20, _row(here), shares=2, joined=True)


def all_reduce(here: Here) -> Iterator[Row]:
    """Yield an all-reduce over all ranks, by size."""
    import torch
    import torch.distributed as dist

    for exponent in range(10, 25 if here.device == "cpu" else 31, 2):
        tensor = torch.rand(1 << (exponent - 2), device=here.device)
        dist.barrier()
        facts = {"bytes": 1 << exponent, "ranks": here.ranks}
        run = partial(dist.all_reduce, tensor)
        yield Row(facts, run, LEAST_RUNS, repeat=_row(here), joined=True)


def _row(here: Here) -> int:
    return IN_A_ROW if here.device != "cpu" else 1
