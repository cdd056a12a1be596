"""Writes a long trace as PyTorch's profiler would, to see what reading it costs."""

from __future__ import annotations

import json
from pathlib import Path


def trace(path: Path, launches: int) -> Path:
    """Write a profiler's trace of this many launches, with operators, records and waits."""
    at, events = 0.0, []
    for k in range(1, launches + 1):
        host, gpu = {"ph": "X", "pid": 9, "tid": 100}, {"ph": "X", "pid": 0, "tid": 7}
        args, on = {"correlation": k}, {"device": 0, "stream": 7, "correlation": k}
        events += [
            {**host, "cat": "cpu_op", "name": "aten::mm", "ts": at, "dur": 9.0},
            {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 2, "dur": 5.0}
            | {"args": args},
            {**gpu, "cat": "kernel", "name": "gemm", "ts": at + 10, "dur": 15.0, "args": on},
            {**host, "cat": "cuda_runtime", "name": "cudaEventRecord", "ts": at + 10, "dur": 1.0},
            {**host, "cat": "cuda_runtime", "name": "cudaStreamWaitEvent", "ts": at + 12}
            | {"dur": 1.0},
        ]
        at += 20.0 if k % 50 else 120.0
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path
