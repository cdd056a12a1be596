"""Measures products beside collectives of NCCL and beside copies that copy engines make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from schedules.input_error import InputError
from traces.record import streams_overlap
from traces.record.load_mixture import spinner
from traces.record.load_sustain import product
from traces.record.load_tape import Tape
from traces.record.workers import Here

Run = Callable[[], object]

PRODUCTS = 0.01  # seconds that products take alone: the clock has hardly fallen by then
LONGER = 2.5  # what runs beside them takes so many times as long, so that it is there throughout
BYTES = 1 << 28  # of a collective's whole buffer, and of a copy
PAUSE = 0.3  # seconds before each run
MOST, LEAST = 20, 3  # repetitions


def measure(tape: Tape, facts: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return the seconds of products and of what is beside them, alone and together."""
    if tape.here.device == "cpu":
        raise InputError("there is no GPU on which something runs beside a product")
    import torch

    spin = spinner(tape.here)
    sizes, run = product(tape, "square")
    other = OTHERS[facts["what"]](tape.here)
    counts = _counts(tape, run, other, facts["what"])
    streams = [torch.cuda.Stream() for _ in range(2)]  # the first is issued first

    def once(works: list[int]) -> list[float]:
        tape.rest(PAUSE)
        runs, repeat = [(other, run)[i] for i in works], [counts[i] for i in works]
        return streams_overlap.together([streams[i] for i in works], runs, repeat, spin)

    repeats = max(LEAST, min(MOST, round(seconds / (3 * PAUSE + 2 * (1 + LONGER) * PRODUCTS))))
    times = [[*once([0]), *once([1]), *once([0, 1])] for _ in range(repeats)]
    middle = [float(one) for one in np.median(np.array(times), axis=0)]
    return {
        **sizes, "bytes": BYTES, "ranks": tape.here.ranks, "products": counts[1],
        "others": counts[0], "alone_s": middle[1::-1], "together_s": middle[:1:-1],
        **streams_overlap.effects(middle[1::-1], middle[:1:-1]),
    }  # fmt: skip


def _counts(tape: Tape, run: Run, other: Run, name: str) -> tuple[int, int]:
    """Return how often each runs, which is the same on all ranks: collectives have to meet."""
    import torch.distributed as dist

    both = [tape.probe(one)[0] for one in (other, run)]
    store = dist.FileStore(str(tape.here.folder / f"agreed {name}"), tape.here.ranks)
    if tape.here.rank == 0:
        for i, span in enumerate((LONGER * PRODUCTS, PRODUCTS)):
            store.set(str(i), str(max(1, round(span / both[i]))))
    return int(store.get("0")), int(store.get("1"))


def _gathered(here: Here) -> Run:
    import torch.distributed as dist

    whole, own = _buffers(here)
    return lambda: dist.all_gather_into_tensor(whole, own)


def _scattered(here: Here) -> Run:
    import torch.distributed as dist

    whole, own = _buffers(here)
    return lambda: dist.reduce_scatter_tensor(own, whole)


def _reduced(here: Here) -> Run:
    import torch.distributed as dist

    whole, _ = _buffers(here)
    return lambda: dist.all_reduce(whole)


def _buffers(here: Here) -> tuple[Any, Any]:
    """Return bf16 of a collective's whole buffer, and of one rank's part."""
    import torch

    part = BYTES // 2 // here.ranks
    return tuple(
        torch.zeros(size, dtype=torch.bfloat16, device=here.device)
        for size in (part * here.ranks, part)
    )


def _copied(here: Here, source: str, target: str) -> Run:
    import torch

    def place(name: str) -> Any:
        at: dict[str, Any] = {"pin_memory": True} if name == "cpu" else {"device": name}
        return torch.zeros(BYTES, dtype=torch.uint8, **at)

    one, two = place(source), place(target)
    return lambda: two.copy_(one, non_blocking=True)


def _next(here: Here) -> str:
    return f"cuda:{(here.rank + 1) % here.ranks}"


OTHERS: Mapping[str, Callable[[Here], Run]] = {
    "all_gather": _gathered,
    "reduce_scatter": _scattered,
    "all_reduce": _reduced,
    "peer": lambda here: _copied(here, here.device, _next(here)),
    "d2h": lambda here: _copied(here, here.device, "cpu"),
    "h2d": lambda here: _copied(here, "cpu", here.device),
}
