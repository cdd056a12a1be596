"""Prices Python between operators: plain modules, FSDP2's units, distributed tensors.

A step in one process over torch's fake process group, which sends nothing, shows the last two for
machines that have no recording of FSDP2 or TP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from schedules.input_error import InputError
from sim.analysis.intervals import Intervals, union, within
from sim.graph import Compute, Graph
from traces.cpu_steps import config, trace
from traces.kineto.cpu_waits import COLLECTIVE, computes, pieces
from traces.packed import content
from validation.processes.steps.groups import of_kernel
from validation.processes.steps.job import graph

PLAIN, UNIT, TENSOR = "plain", "unit", "tensor"
"""Seconds per kernel; per collective of FSDP2; per kernel of distributed tensors."""
COPY_INS = ("param_copy_in", "grad_copy_in")  # one for each collective of FSDP2


def is_fake(path: Path) -> bool:
    """Return whether a file is a profiler trace of a step over the fake process group."""
    try:
        about = orjson.loads(content(path)).get("distributedInfo")
        return isinstance(about, dict) and about.get("backend") == "fake"
    except (OSError, ValueError, AttributeError):
        return False


def of_fake(path: Path) -> dict[str, float]:
    """Return the costs of FSDP2's units and of distributed tensors, from a step of both."""
    read, text = trace.read(path)
    file = orjson.loads(text)
    spans = [
        (e["ts"] * 1e3, (e["ts"] + e["dur"]) * 1e3)
        for e in file["traceEvents"]
        if str(e.get("name")).startswith("FSDP::") and e.get("ph") == "X"
    ]
    base = int(file.get("baseTimeNanoseconds", 0))
    starts, ends = np.array(spans, np.float64).T + base
    low, high = int(read.start.min()), int(read.end.max())
    of = pieces(read.start - low, read.end - low, 0, high - low)
    names = [*read.names, ""]
    thread = np.array([not computes(n) and not COLLECTIVE.search(n) for n in names])[of.owner]
    host = Intervals(of.start[thread].astype(float), of.end[thread].astype(float))
    unit = float(within(host, union(starts - low, ends - low)).sum()) * 1e-9
    whole = float((host.end - host.start).sum()) * 1e-9
    sizes = config.from_trace(read, 1, "tp", ())
    made = graph("tp", 2, {**sizes, "optimizer": "sgd"})
    units = 3 * int(sizes["blocks"])  # two gathers and a reduction each
    return {UNIT: unit / units, TENSOR: (whole - unit) / kernels(made)}


def per_kernel(costs: Mapping[str, float], mode: str, name: str) -> float:
    """Return seconds of the thread around a kernel. Raises InputError if they are unknown."""
    needed = {"tp": [TENSOR], "fsdp2": [PLAIN, UNIT]}.get(mode, [PLAIN])
    lacking = [of for of in needed if of not in costs]
    if lacking:
        raise InputError(
            f"nothing is known about what Python costs in {mode} ({', '.join(lacking)}); put "
            f"another recording of {mode}, of other sizes, or a step over torch's fake group "
            "beside it, or name one by --calibrate"
        )
    unit = costs[UNIT] if mode == "fsdp2" and name in COPY_INS else 0.0
    return costs[TENSOR if mode == "tp" else PLAIN] + unit


def kernels(graph: Graph) -> int:
    """Return how many kernels of one rank take something."""
    return sum(of_kernel(name, work) != "" for name, work in of_rank(graph))


def of_rank(graph: Graph) -> Sequence[tuple[str, Compute]]:
    """Return names and works of the kernels of the first rank."""
    one = graph.rank == graph.rank.min()
    rows: Any = zip(graph.name[one].tolist(), graph.work[one].tolist(), strict=True)
    found = ((graph.names[name], graph.works[w]) for name, w in rows)
    return [(name, work) for name, work in found if isinstance(work, Compute)]
