"""What one rank does to measure kernels and transfers: medians of repeated runs, in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from traces.record.workers import Here, Task

LEAST_RUNS = 5


def work(task: Task, here: Here) -> dict[str, Any]:
    """Rows of each part of the sweep, within its seconds; a part that fails says why."""
    out: dict[str, Any] = {"device": here.device}
    for name in task["parts"]:
        until = time.monotonic() + task["seconds"] / len(task["parts"])
        try:
            out[name] = PARTS[name](here, until)
        except Exception as error:  # the other parts are worth having
            out[name] = {"skipped": f"{type(error).__name__}: {error}".splitlines()[0]}
    return out


def seconds(
    here: Here, run: Callable[[], object], until: float, most: int = 50, least: int = LEAST_RUNS
) -> dict[str, Any]:
    """Median, 10th and 90th percentile of a few runs, by the device's clock where it has one."""
    import numpy as np

    run()
    times: list[float] = []
    while len(times) < most and (len(times) < least or time.monotonic() < until):
        times.append(_one(here, run))
    low, middle, high = np.percentile(times, (10, 50, 90))
    return {"s": float(middle), "s_p10": float(low), "s_p90": float(high), "runs": len(times)}


def _one(here: Here, run: Callable[[], object]) -> float:
    if here.device == "cpu":
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin
    import torch

    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    run()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / 1e3


def _gemm(here: Here, until: float) -> list[dict[str, Any]]:
    """Products of matrices; bf16 on a GPU, fp32 on the CPU, random data."""
    import torch

    on_gpu = here.device != "cpu"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    sizes = (512, 1024, 2048, 4096, 8192) if on_gpu else (64, 128, 256, 512)
    shapes = [(m, n, k) for m in sizes for n in sizes[-3:] for k in sizes[-3:]]
    rows = []
    for m, n, k in shapes:
        if time.monotonic() > until:
            break
        a, b = (torch.randn(s, device=here.device, dtype=dtype) for s in ((m, k), (k, n)))
        took = seconds(here, lambda a=a, b=b: a @ b, until, 20)  # type: ignore[misc]
        rows.append({"m": m, "n": n, "k": k, "dtype": str(dtype).partition(".")[2], **took})
    return rows


def _attention(here: Here, until: float) -> list[dict[str, Any]]:
    """Causal attention, forward, and forward with backward."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attention

    on_gpu = here.device != "cpu"
    dtype, heads, dim = (torch.bfloat16, 32, 128) if on_gpu else (torch.float32, 4, 64)
    rows = []
    for length in (1024, 2048, 4096, 8192) if on_gpu else (64, 128, 256):
        if time.monotonic() > until:
            break
        q = torch.randn(1, heads, length, dim, device=here.device, dtype=dtype, requires_grad=True)

        def forward(q: Any = q) -> Any:
            return attention(q, q, q, is_causal=True)

        def both(forward: Callable[[], Any] = forward) -> None:
            forward().sum().backward()

        for what, run in (("forward", forward), ("forward and backward", both)):
            took = seconds(here, run, until, 20)
            rows.append({"what": what, "sequence": length, "heads": heads, "dim": dim, **took})
    return rows


def _memory(here: Here, until: float) -> list[dict[str, Any]]:
    """Copies by size, within the device and between it and the host."""
    import torch

    on_gpu = here.device != "cpu"
    places: dict[str, dict[str, Any]] = {
        "d": {"device": here.device},
        "h": {"device": "cpu", "pin_memory": on_gpu},
    }
    rows: list[dict[str, Any]] = []
    for exponent in range(12, 31 if on_gpu else 27, 2):
        for way in ("d2d", "h2d", "d2h") if on_gpu else ("d2d",):
            if time.monotonic() > until:
                return rows
            source, target = (
                torch.empty(1 << exponent, dtype=torch.uint8, **places[end])
                for end in (way[0], way[2])
            )

            def copy(source: Any = source, target: Any = target) -> None:
                target.copy_(source, non_blocking=True)

            rows.append({"way": way, "bytes": 1 << exponent, **seconds(here, copy, until, 20)})
    return rows


def _launch(here: Here, until: float) -> list[dict[str, Any]]:
    """The host's time per small kernel, issued one behind another."""
    import torch

    x = torch.zeros(1, device=here.device)
    count = 1000

    def many() -> None:
        for _ in range(count):
            x.add_(1.0)

    begin = time.perf_counter()
    many()
    issued = (time.perf_counter() - begin) / count
    took = seconds(here, many, until, 10)
    return [{"issued_s": issued, "kernels": count, **took}]


def _p2p(here: Here, until: float) -> list[dict[str, Any]]:
    """A message there and back between ranks 0 and 1: half of the round, by size."""
    import torch
    import torch.distributed as dist

    if here.ranks < 2:
        raise ValueError("a message needs two ranks")
    rows = []
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
        took = seconds(here, round_trip, 0.0, 20, 20)  # the same count on both
        rows.append({"bytes": 1 << exponent, **{k: v / 2 if k[0] == "s" else v
                                                for k, v in took.items()}})  # fmt: skip
    return rows


def _all_reduce(here: Here, until: float) -> list[dict[str, Any]]:
    """An all-reduce over all ranks, by size."""
    import torch
    import torch.distributed as dist

    if here.ranks < 2:
        raise ValueError("an all-reduce needs two ranks")
    rows = []
    for exponent in range(10, 25 if here.device == "cpu" else 31, 2):
        tensor = torch.zeros(1 << (exponent - 2), device=here.device)
        dist.barrier()
        took = seconds(here, lambda t=tensor: dist.all_reduce(t), 0.0, LEAST_RUNS)  # type: ignore[misc]
        rows.append({"bytes": 1 << exponent, "ranks": here.ranks, **took})
    return rows


PARTS: dict[str, Callable[[Here, float], list[dict[str, Any]]]] = {
    "p2p": _p2p,
    "all_reduce": _all_reduce,
    "launch": _launch,
    "memory": _memory,
    "attention": _attention,
    "gemm": _gemm,
}
