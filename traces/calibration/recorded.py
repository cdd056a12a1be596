"""Kernels that `traincast record` measured on a GPU, and what a topology predicts for them.

The sweep is that of ``record all`` (its section ``kernels``) or of ``record sweep``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import fsum
from pathlib import Path
from typing import NamedTuple

import numpy as np

from schedules.input_error import InputError
from sim.builder.activations import layer_bytes
from sim.builder.job import Job
from sim.builder.shares import share
from sim.files import read_text
from sim.graph import Compute
from sim.machine.cluster import Gpu
from sim.machine.kernels import compute_seconds
from sim.model.layer import layer
from sim.model.sizes import Model
from sim.recipe.recipe import ParallelismSection, ScheduleSection, TrainingSection
from traces.calibration.errors import FitError, fit_error
from traces.calibration.recorded_rows import DTYPES, Row, check

LARGE = 1 << 20  # bytes; smaller copies take latency, which topologies do not have for copies
SECTIONS = ("kernels", "load")
EAGER = "except_gate"  # torch without a compiler: activation and gate are kernels of their own


class Sweep(NamedTuple):
    """What was measured, by part, on which GPU, and by which command and torch."""

    parts: Mapping[str, Sequence[Row]]
    gpu: str
    command: str
    torch: str


class Measurement(NamedTuple):
    """One measurement: its family, and seconds (or bytes) predicted and measured."""

    family: str
    predicted: float
    measured: float


def read(path: Path) -> Sweep:
    """Read the sweep in a file.

    Raises InputError for a file that has none, or one of a CPU.
    """
    text = read_text(path)
    try:
        content = json.loads(text)
        some = _sweeps(content)
        device, gpu, command = some[0]["device"], str(some[0]["gpu"]), content["command"]
        torch = str(content["machine"]["torch"])
        parts = {key: rows for one in some for key, rows in one.items() if isinstance(rows, list)}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        lacks = f": it lacks {error.args[0]!r}" if isinstance(error, KeyError) else ""
        raise InputError(
            f"{path} has no measured kernels{lacks}; give the result.json of traincast record all, "
            "or a file of traincast record sweep"
        ) from None
    if device == "cpu":
        raise InputError(f"{path} was recorded on a CPU; constants are fitted to a GPU's kernels")
    check(path, parts)
    return Sweep(parts, gpu, command, torch)


def _sweeps(content: Row) -> list[Row]:
    """Return what is like a sweep in a file: all of it, or two sections of ``record all``."""
    if "sections" not in content:
        return [content]
    return [content["sections"][name] for name in SECTIONS if name in content["sections"]]


def pairs(gpu: Gpu, sweep: Sweep) -> Iterator[Measurement]:
    """Yield a pair for every measurement that a topology predicts."""
    for part, of in PARTS.items():
        for row in sweep.parts.get(part, ()):
            yield from of(gpu, row)


def errors(some: Iterator[Measurement], prefix: str) -> tuple[FitError, ...]:
    """Return how far predictions are from measurements, by family."""
    by: dict[str, list[tuple[float, float]]] = {}
    for family, *times in some:
        by.setdefault(family, []).append((times[0], times[1]))
    return tuple(fit_error(f"{prefix}{family}", *np.array(rows).T) for family, rows in by.items())


def seconds(gpu: Gpu, work: Compute) -> float:
    """Return the seconds of a kernel alone."""
    arithmetic, memory, fixed = compute_seconds(gpu, work)
    return max(arithmetic, memory) + fixed


def gemm(row: Row) -> Compute:
    """Return a product as a kernel."""
    m, n, k = (row[key] for key in "mnk")
    return Compute("gemm", 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n), (1, m, n, k),
                   DTYPES[row["dtype"]])  # fmt: skip


def attention(row: Row) -> Compute:
    """Return an attention as a kernel; it moves four tensors forward, eight backward."""
    batch, heads, s, dim = (row[key] for key in ("batch", "heads", "sequence", "dim"))
    back = row["what"] == "backward"
    keys = s / 2 if row["causal"] else s
    flops = (10.0 if back else 4.0) * batch * heads * s * keys * dim
    moved = 2.0 * (8 if back else 4) * batch * heads * s * dim
    return Compute("attention_backward" if back else "attention", flops, moved,
                   (batch, heads, s, s, dim), DTYPES[row["dtype"]], "sdpa")  # fmt: skip


def _gemm(gpu: Gpu, row: Row) -> Iterator[Measurement]:
    kind = "thin gemm" if row["m"] < 1024 else "gemm"
    yield Measurement(f"{kind} {DTYPES[row['dtype']]}", seconds(gpu, gemm(row)), row["s"])


def _attention(gpu: Gpu, row: Row) -> Iterator[Measurement]:
    mask = "causal" if row["causal"] else "full"
    family = f"attention {row['what']}, {mask}, head dimension {row['dim']}"
    yield Measurement(family, seconds(gpu, attention(row)), row["s"])


def _elementwise(gpu: Gpu, row: Row) -> Iterator[Measurement]:
    yield Measurement(row["kind"], seconds(gpu, Compute(row["kind"], 0.0, row["bytes"])), row["s"])


def _memory(gpu: Gpu, row: Row) -> Iterator[Measurement]:
    """Yield copies at the nominal bandwidth; one within the device reads and writes."""
    bandwidth = gpu.memory_bandwidth / 2 if row["way"] == "d2d" else gpu.host_bandwidth
    if bandwidth and row["bytes"] >= LARGE:
        yield Measurement(
            f"copy {row['way']}, nominal bandwidth", row["bytes"] / bandwidth, row["s"]
        )


def _block(gpu: Gpu, row: Row) -> Iterator[Measurement]:
    """Yield the steps of a block as the sums of its kernels, and the bytes that it keeps."""
    job = block(row)
    operators = layer(job.model, share(job))
    forward, backward, weight = (
        fsum(seconds(gpu, launch.work) for op in operators for launch in getattr(op, kind))
        for kind in ("forward", "backward", "weight")
    )
    times = {"F": forward, "B": backward + weight, "I": backward, "W": weight}
    for kind, predicted in times.items():
        yield Measurement(f"block {kind}, the sum of its kernels", predicted, row[kind])
    kept = layer_bytes(job)
    yield Measurement("block, bytes kept for backward, counted", kept, row["kept_bytes"])
    if "allocated_bytes" in row:
        held = row["allocated_bytes"] - row["output_bytes"]  # the next block keeps the output
        yield Measurement("block, bytes kept for backward, allocated", kept, held)


def block(row: Row) -> Job:
    """Return the recorded block as a job of one layer."""
    sizes = {key: row[key] for key in ("hidden", "heads", "kv_heads", "head_dim", "ffn")}
    model = Model(
        name="block", layers=1, **sizes, gated=True, vocab=1, tied=False, norm="rms",
        attention="flash", activation="silu", qkv_bias=False, bias=False, position="none",
        dropout=0.0, vocab_padding=1, positions=0, sequence=row["sequence"], fused=EAGER,
    )  # fmt: skip
    dtype = DTYPES[row["dtype"]]
    sizes = {"micro_batch": row["micro_batch"], "global_batch": row["micro_batch"]}
    training = TrainingSection.model_validate({**sizes, "dtype": dtype, "grad_dtype": dtype})
    return Job(model, ParallelismSection(), training, ScheduleSection(), plan=[])


PARTS: Mapping[str, Callable[[Gpu, Row], Iterator[Measurement]]] = {
    "gemm": _gemm,
    "attention": _attention,
    "elementwise": _elementwise,
    "memory": _memory,
    "block": _block,
}
