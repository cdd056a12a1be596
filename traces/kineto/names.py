"""Knows what names mean: categories old and new, host calls, pipeline actions, process groups."""

from __future__ import annotations

import re
from typing import NamedTuple

from traces.kernel_names import shipped

KERNEL, COPY, CALL, SYNC, MARK, OPERATOR = "kernel", "copy", "call", "sync", "mark", "operator"

CATEGORIES = {
    "kernel": KERNEL,
    "concurrent_kernel": KERNEL,
    "mtia_ccp_events": KERNEL,
    "gpu_memcpy": COPY,
    "gpu_memset": COPY,
    "memcpy": COPY,
    "memset": COPY,
    "cuda_sync": SYNC,
    "runtime": CALL,
    "driver": CALL,
    "hpu_op": CALL,
    "user_annotation": MARK,
    "cpu_op": OPERATOR,
    "operator": OPERATOR,
}
"""Lower-case category of an event -> what it is."""

KNOWN = shipped().kinds | {"attention_backward"}
"""Kinds that a file itself may give its kernels, as our files do."""

SKIPPED = re.compile(
    r"Query|Get|IsCapturing|Occupancy|Attribute|PeekAt|ElapsedTime|Destroy|Create|PointerSet"
)
"""Host calls that neither launch nor wait: they are only time between those that do."""
WAITS = re.compile(r"(cuda|hip|cu)StreamWaitEvent")
RECORDS = re.compile(r"(cuda|hip|cu)EventRecord")
SYNCHRONISES = re.compile(
    r"[a-z]+(Device|Ctx|Context|Thread|Stream|Event|CommandQueue|CommandList|Queue|Fence)"
    r"(Host)?(Synchronize|Finish)"
)
FREES = re.compile(r"(cuda|hip|cuMem)(Free|HostUnregister)(_|$)")
"""Calls that wait until the whole device has nothing to do, as freeing memory does."""
COPIES = re.compile(r"Memcpy|Memset")
"""Calls that may return only when they have copied, as those to and from pageable memory do."""

DIMENSIONS = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "mesh_tp": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "mesh_pp": "pp",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "mesh_dp": "dp",
    "mesh_dp_shard": "shard",
    "mesh_dp_shard_cp": "shard",
    "mesh_dp_replicate": "replicate",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "mesh_cp": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "mesh_ep": "ep",
}
"""Whose traffic a process group carries, by the description its framework gives it."""

UNREAD = frozenset(
    {
        "ac2g", "async_cpu_to_gpu", "fwdbwd", "trace", "overhead", "python_function",
        "gpu_user_annotation", "user_annotation_gpu", "cuda_profiler_range", "cpu_instant_event",
        "external_correlation", "cuda_event", "gpu_pm_counter", "mtia_counters",
        "mtia_insight", "collective_comm", "python",
    }
)  # fmt: skip
"""Categories that say nothing about what ran, or repeat it."""

_ACTION = re.compile(r"(?:PP:)?(\d{1,4})(F|B|I|W|R)(\d{1,6})")
_PHASED = re.compile(r"(Forward|Backward|Weight) (\d{1,6})")
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,9})(?!\d)")


class Action(NamedTuple):
    """A pipeline step that an annotation names."""

    phase: str
    stage: int
    microbatch: int


def category(of: str) -> str | None:
    """Return what an event of a category is, or None if it is not read.

    PyTorch 1.8 wrote Kernel, Runtime, Operator. Kineto counts device events and runtimes of all
    accelerators as kernels and runtimes: ``mtia_ccp_events``, ``xpu_driver``, ``glow_runtime``.

    >>> category("Kernel"), category("mtia_runtime"), category("python_function")
    ('kernel', 'call', None)
    """
    of = of.lower()
    return CATEGORIES.get(of) or (CALL if of.endswith(("_runtime", "_driver")) else None)


def action(name: str) -> Action | None:
    """Return the pipeline step that an annotation names.

    >>> action("PP:2F0"), action("Backward 3"), action("Optimizer.step#Adam.step")
    (Action(phase='F', stage=2, microbatch=0), Action(phase='B', stage=-1, microbatch=3), None)
    """
    if found := _ACTION.fullmatch(name):
        return Action(found[2], int(found[1]), int(found[3]))
    if found := _PHASED.fullmatch(name):
        return Action(found[1][0], -1, int(found[2]))
    return None


def step_of(name: str) -> int | None:
    """Return the number of a ``ProfilerStep#`` annotation."""
    found = _STEP.match(name)
    return int(found[1]) if found else None
