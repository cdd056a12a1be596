"""Stages of a recorded pipeline: blocks of a transformer, or a device that only takes its time."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import fsum
from typing import Any

from traces.record import pace
from traces.record.clock import StreamClock
from traces.record.pipeline_log import Log

Take = Callable[[int, float], None]
"""A function that lets time pass until so many seconds after an instant of the host's clock."""


def module(task: dict[str, Any], stage: int) -> Any:
    """Return the modules of a stage, with the same weights in every process and run."""
    import torch
    from torch import nn

    torch.manual_seed(task["seed"] + stage)
    width = task["d"]
    if task["virtual"]:
        return _scaled(width)
    blocks = [
        nn.TransformerEncoderLayer(
            width, task["heads"], 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        for _ in range(task["layers"])
    ]
    return nn.Sequential(*blocks)


def _scaled(width: int) -> Any:
    """Return a layer that costs next to nothing, however large the message."""
    import torch
    from torch import nn

    class Scaled(nn.Module):  # type: ignore[misc]  # torch is Any to the type checker
        """Each column times a weight."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(width))

        def forward(self, x: Any) -> Any:
            return x * self.weight

    return Scaled()


def recorded(task: dict[str, Any], stage: int, stages: int, device: str, log: Log) -> Any:
    """Return a stage of torch's that writes down when it computes what."""
    import torch
    from torch.distributed.pipelining import PipelineStage

    seconds = _seconds(task, stage)
    dtype = getattr(torch, task.get("dtype", "float32"))
    take = _on_host if device == "cpu" else _on_gpu()

    class Recorded(PipelineStage):  # type: ignore[misc]  # torch is Any to the type checker
        """Runs the real stage; a virtual one then fills up its nominal time."""

        def _timed(self, kind: str, m: int, real: Callable[[], Any]) -> Any:
            with log.compute(stage, kind, m):
                begin = time.monotonic_ns()
                out = real()
                if seconds:
                    scale = task["overlap"] if log.overlapping else 1.0
                    take(begin, fsum(seconds[k] for k in PARTS[kind]) * scale)
                return out

        def forward_one_chunk(self, m: int, *args: Any, **kwargs: Any) -> Any:
            real = super().forward_one_chunk
            return self._timed("F", m, lambda: real(m, *args, **kwargs))

        def backward_one_chunk(self, m: int, *args: Any, **kwargs: Any) -> Any:
            real = super().backward_one_chunk
            kind = "B" if kwargs.get("full_backward", True) else "I"
            return self._timed(kind, m, lambda: real(m, *args, **kwargs))

        def backward_weight_one_chunk(self, m: int, *args: Any, **kwargs: Any) -> Any:
            real = super().backward_weight_one_chunk
            return self._timed("W", m, lambda: real(m, *args, **kwargs))

    return Recorded(module(task, stage).to(device, dtype), stage, stages, torch.device(device))


PARTS = {"F": "F", "B": "IW", "I": "I", "W": "W"}
"""The parts of a step's nominal time: a whole backward has both halves."""


def _seconds(task: dict[str, Any], stage: int) -> dict[str, float]:
    """Return the nominal times of a virtual stage; none for a real one."""
    given = task["virtual"] or {}
    return {k: v[stage] if isinstance(v, list) else v for k, v in given.items()}


def _on_host(begin: int, seconds: float) -> None:
    pace.sleep_until(begin + round(seconds * 1e9))


def _on_gpu() -> Take:
    """Return a function that lets time pass in a kernel after what the stage computes."""
    spin = spinner()
    return lambda _, seconds: spin(seconds)


def spinner() -> Callable[[float], None]:
    """Return a function that lets seconds pass on the current stream, in a kernel that spins.

    The kernel has one thread and counts cycles, so the clock is measured first, until the GPU has
    raised it.
    """
    import torch

    cycles = 10_000_000
    rate, before = _cycles_per_second(cycles), 0.0
    for _ in range(20):
        if abs(rate - before) < 0.002 * rate:
            break
        rate, before = _cycles_per_second(cycles), rate
    return lambda seconds: torch.cuda._sleep(round(seconds * rate))


def _cycles_per_second(cycles: int) -> float:
    import torch

    clock = StreamClock()
    torch.cuda._sleep(cycles // 10)
    begin = clock.now()
    torch.cuda._sleep(cycles)
    return cycles / clock.seconds(begin, clock.now())
