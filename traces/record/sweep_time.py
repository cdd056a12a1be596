"""Times a piece of work on a device: the median of repeated runs, and their spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from traces.record.clock import clock
from traces.record.workers import Here

LEAST_RUNS = 5
SHORT = 200e-6  # seconds; shorter work is repeated, as an event's clock ticks twice a microsecond
MOST_REPEATS = 20
AHEAD = 4e9  # cycles per second, more than any GPU makes, so a spin lasts long enough
LONGEST_SPIN = 0.02  # seconds

Run = Callable[[], object]


def seconds(
    here: Here, run: Run, until: float, most: int = 50, least: int = LEAST_RUNS,
    repeat: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return median, 10th and 90th percentile of a few runs, by the device's clock if it has one.

    On a GPU a kernel that spins goes first, so that the host has issued all of a run before it
    begins: what is measured is the device's time, launches left out. Work shorter than 200 us runs
    several times in a row and is divided; ``repeat`` says how often instead, which ranks that meet
    must agree on.
    """
    run()  # loads kernels, allocates
    issued = issue(here, run)
    once = _one(here, run, 1, issued)
    count = repeat or max(1, min(MOST_REPEATS, round(SHORT / max(once, 1e-9))))
    times: list[float] = []
    while len(times) < most and (len(times) < least or time.monotonic() < until):
        times.append(_one(here, run, count, issued * count) / count)
    return spread(times)


def spread(times: Sequence[float]) -> dict[str, Any]:
    """Return the median of a few times, their 10th and 90th percentile, and how many there are."""
    import numpy as np

    low, middle, high = np.percentile(times, (10, 50, 90))
    return {"s": float(middle), "s_p10": float(low), "s_p90": float(high), "runs": len(times)}


def issue(here: Here, run: Run) -> float:
    """Return the seconds that the host needs to issue a run."""
    synchronize(here)
    begin = time.perf_counter()
    run()
    issued = time.perf_counter() - begin
    synchronize(here)
    return issued


def _one(here: Here, run: Run, count: int, issued: float) -> float:
    timer = clock(here.device)
    if here.device != "cpu":
        import torch

        torch.cuda._sleep(int(AHEAD * min(1.5 * issued + 50e-6, LONGEST_SPIN)))
    before = timer.now()
    for _ in range(count):
        run()
    return timer.seconds(before, timer.now())


def synchronize(here: Here) -> None:
    """Wait for all that the device was told to do."""
    clock(here.device).end()


def random(here: Here, *shape: int, grad: bool = False) -> Any:
    """Return a tensor of random numbers, bf16 on a GPU: zeros draw less power, and run faster."""
    import torch

    return torch.randn(*shape, device=here.device, dtype=dtype(here), requires_grad=grad)


def dtype(here: Here) -> Any:
    """Return what training computes in: bf16 on a GPU, fp32 on the CPU."""
    import torch

    return torch.float32 if here.device == "cpu" else torch.bfloat16


def dtype_name(here: Here) -> str:
    """Return torch's name of that."""
    return str(dtype(here)).partition(".")[2]
