"""Describes the machine and versions that made a recording; it names no hosts."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from schedules.input_error import InputError

T = TypeVar("T")


def require_torch() -> None:
    """Raise InputError, in one sentence, where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("recording needs torch, which is not installed; install torch==2.13")


def facts() -> dict[str, Any]:
    """Return processor, cores, load and versions, as JSON."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "load": load(),
        "python": platform.python_version(),
        "traincast": _version("traincast"),
        "torch": _version("torch"),
    }


ASK = """
import json, sys
from traces.record import pace
pace.die_with(int(sys.argv[1]))
import torch, torch.distributed
cuda = torch.cuda
nccl = torch.distributed.is_nccl_available()
each = [cuda.get_device_properties(i) for i in range(cuda.device_count())]
print(json.dumps({
    "gpus": [{"name": one.name, "memory_bytes": one.total_memory,
              "sms": one.multi_processor_count} for one in each],
    "cuda": torch.version.cuda,
    "nccl": ".".join(map(str, cuda.nccl.version())) if each and nccl else None,
}))
"""


def gpus(timeout: float = 120.0) -> dict[str, Any]:
    """Return which GPUs torch can use, and the versions of CUDA and NCCL that it has.

    A separate process finds out, as one that has used CUDA keeps some of its memory. Where that
    fails, there are none, and ``error`` says why.
    """
    from traces.record import workers

    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK, str(os.getpid())],
            capture_output=True, text=True, check=True, timeout=timeout,
            stdin=subprocess.DEVNULL, env=workers.environment(),
        )  # fmt: skip
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return {"gpus": [], "error": f"torch did not say which there are in {timeout:.0f} s"}
    except (subprocess.CalledProcessError, ValueError, IndexError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        return {"gpus": [], "error": said[-1]}


def noted(command: str, run: Callable[[], T]) -> tuple[T, dict[str, Any]]:
    """Return what a run returns, and what its file says of the command and of the machine then."""
    before = facts()
    found = run()
    return found, {"command": command, "machine": before | {"load_after": load()}}


def load() -> float:
    """Return the mean number of processes that wanted to run in the last minute."""
    return round(os.getloadavg()[0], 2)


def command(arguments: Sequence[str]) -> str:
    """Return what to type to record the same again.

    >>> command(["record", "pipeline", "gpipe", "--out", "two words"])
    "traincast record pipeline gpipe --out 'two words'"
    """
    return shlex.join(["traincast", *arguments])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
