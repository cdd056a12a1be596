"""Measures what slows what on one GPU: pairs of works on two streams, a product beside a copy.

The copy kernel runs on a few SMs that a green context sets apart, as NCCL's kernels take a few.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import fsum
from typing import Any

from schedules.input_error import InputError
from traces.record.clock import StreamClock
from traces.record.workers import Task

Run = Callable[[], Any]

TARGET = 0.02  # seconds that each work of a pair takes alone
GATE = 0.03  # seconds of a spin, behind which both streams begin when the host has issued all
SMS = (8, 16, 32, 64, 128)


def overlap(task: Task, spin: Callable[[float], None]) -> list[dict[str, Any]]:
    """Return the seconds of two kinds of work, alone and together on two streams.

    A kernel of one thread that spins is among them: nothing is lost beside it.
    """
    import torch

    n, size = task["gemm"], task["copy"]
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    device, other = (
        torch.empty(size, dtype=torch.uint8, device="cuda").random_() for _ in range(2)
    )
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    works: dict[str, Run] = {
        "spin": lambda: spin(0.001),
        "gemm": lambda: a @ b,
        "d2d": lambda: other.copy_(device),
        "h2d": lambda: device.copy_(host, non_blocking=True),
        "d2h": lambda: host.copy_(other, non_blocking=True),
    }
    streams = [torch.cuda.Stream() for _ in range(2)]
    alone = {name: _alone(run, streams, spin) for name, run in works.items()}
    rows = []
    for one, two in itertools.combinations_with_replacement(works, 2):
        repeat = [max(1, round(TARGET / alone[name])) for name in (one, two)]
        both = together(streams, [works[one], works[two]], repeat, spin)
        apart = [alone[one] * repeat[0], alone[two] * repeat[1]]
        rows.append({"works": [one, two], "alone_s": apart, "together_s": both,
                     **effects(apart, both)})  # fmt: skip
    return rows


def _alone(run: Run, streams: Sequence[Any], spin: Callable[[float], None]) -> float:
    """Return the seconds of one repetition."""
    once = together(streams[:1], [run], [1], spin)[0]
    count = max(1, round(TARGET / once))
    return together(streams[:1], [run], [count], spin)[0] / count


def together(
    streams: Sequence[Any], runs: Sequence[Run], repeat: Sequence[int],
    spin: Callable[[float], None],
) -> list[float]:  # fmt: skip
    """Return the seconds from the common start to the end of each stream."""
    import torch

    for stream, run in zip(streams, runs, strict=True):
        with torch.cuda.stream(stream):
            run()  # so that its memory is allocated and its kernels are loaded
    clock, ends = StreamClock(), list[Any]()
    clock.end()
    spin(GATE)
    begin = clock.now()
    for stream, run, count in zip(streams, runs, repeat, strict=True):
        stream.wait_event(begin)
        with torch.cuda.stream(stream):
            for _ in range(count):
                run()
            ends.append(clock.now())
    return [clock.seconds(begin, end) for end in ends]


def effects(alone: Sequence[float], both: Sequence[float]) -> dict[str, Any]:
    """Return how much of the shorter work was hidden, and how much slower each ran meanwhile.

    The one that ends last runs at full speed once the other has ended. Its slowdown is None if it
    had done nothing until then.

    >>> effects([20.0, 20.0], [20.0, 20.0])  # nothing shared
    {'overlap': 1.0, 'slowdown': [1.0, 1.0]}
    >>> effects([20.0, 20.0], [20.0, 40.0])  # one behind the other
    {'overlap': 0.0, 'slowdown': [1.0, None]}
    >>> effects([20.0, 10.0], [25.0, 20.0])  # while both ran, 15 of the one's 20 were done
    {'overlap': 0.5, 'slowdown': [1.3333, 2.0]}
    """
    hidden = (fsum(alone) - max(both)) / min(alone)
    first = min(range(2), key=lambda i: both[i])
    ended, last = both[first], 1 - first
    done = alone[last] - (both[last] - ended)
    slow: list[float | None] = [0.0, 0.0]
    slow[first] = round(ended / alone[first], 4)
    slow[last] = round(ended / done, 4) if done > 1e-3 * alone[last] else None
    return {"overlap": round(hidden, 4), "slowdown": slow}


def green(task: Task, spin: Callable[[float], None]) -> list[dict[str, Any]]:
    """Measure a product on some SMs, and one on all of them beside a copy kernel on some.

    Contexts of torch begin at the same first SM, so two of them always overlap.
    """
    import torch
    from torch.cuda import green_contexts

    if not green_contexts.SUPPORTED:
        raise InputError("this torch has no green contexts")
    n = task["gemm"]
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    source, target = (torch.randn(task["copy"] // 4, device="cuda") for _ in range(2))
    works: list[Run] = [lambda: a @ b, lambda: torch.add(source, 1.0, out=target)]
    whole = torch.cuda.Stream()
    alone = _alone(works[0], [whole], spin)
    rows = []
    for sms in SMS:
        if sms >= torch.cuda.get_device_properties(0).multi_processor_count:
            break
        context = green_contexts.GreenContext.create(num_sms=sms, device_id=0)
        part = context.Stream()
        product, copy = (_alone(run, [part], spin) for run in works)
        repeat = [max(1, round(TARGET / one)) for one in (alone, copy)]
        both = together([whole, part], works, repeat, spin)
        apart = [alone * repeat[0], copy * repeat[1]]
        rows.append(
            {"sms": sms, "gemm_s": product, "gemm_all_sms_s": alone,
             "copy_bytes": 2 * task["copy"], "copy_s": copy,
             "alone_s": apart, "together_s": both, **effects(apart, both)}
        )  # fmt: skip
    return rows
