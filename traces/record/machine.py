"""What every recording says of the machine and the versions that made it; no names of hosts."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any


def require_torch() -> None:
    """Raise ValueError, in one sentence, where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise ValueError("recording needs torch, which is not installed; install torch==2.13")


def facts() -> dict[str, Any]:
    """Processor, cores, load and versions, as JSON."""
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


def load() -> float:
    """Processes that wanted to run in the last minute, on the mean."""
    return round(os.getloadavg()[0], 2)


def command(arguments: Sequence[str]) -> str:
    """What to type to record the same again.

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
