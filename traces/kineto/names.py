"""What names say: categories old and new, kinds of kernels, host calls, pipeline actions."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

KERNEL, COPY, CALL, SYNC, MARK, OPERATOR = "kernel", "copy", "call", "sync", "mark", "operator"

CATEGORIES = {
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "gpu_memset": COPY,
    "memcpy": COPY,
    "memset": COPY,
    "cuda_runtime": CALL,
    "cuda_driver": CALL,
    "runtime": CALL,
    "hip_runtime": CALL,
    "hip_driver": CALL,
    "cuda_sync": SYNC,
    "user_annotation": MARK,
    "cpu_op": OPERATOR,
    "operator": OPERATOR,
}
"""Lower-case category of an event -> what it is. PyTorch 1.8 wrote Kernel, Runtime, Operator."""

KINDS: tuple[tuple[str, str], ...] = (
    (
        "communication",
        r"^nccl|^rccl|^mscclKernel|nvshmem|deep_ep::|_all_reduce_",
    ),
    ("attention", r"flash|fmha|attention|sdpa|attn_|_attn|mha_"),
    ("optimizer", r"multi_tensor_apply|MultiTensorApply|[Aa]dam|_sgd_|fused_sgd|[Ll]amb_"),
    (
        "convolution",
        r"conv|wgrad|dgrad|fprop|implicit_gemm|winograd|[Ii]m2[Cc]ol|[Cc]ol2[Ii]m",
    ),
    ("gemm", r"gemm|gemv|cutlass|cublas|Cijk_|matmul|nvjet|splitK|_mm_|wmma"),
    (
        "norm",
        r"[Ll]ayer_?[Nn]orm|[Rr][Mm][Ss]_?[Nn]orm|[Bb]atch_?[Nn]orm|bn_[fb]w|group_?norm",
    ),
    ("softmax", r"[Ss]oft_?[Mm]ax"),
    ("cross_entropy", r"nll_loss|cross_?entropy"),
    ("embedding", r"[Ee]mbedding|embedding"),
    ("dropout", r"[Dd]ropout"),
    ("reduction", r"reduce_kernel|[Rr]eduction|cub::Device(Reduce|Scan|Segmented)"),
    ("index", r"index|gather|scatter|CatArray|sort|Sort|topk|radix"),
    ("elementwise", r"elementwise|triton_|fused|Functor|vectorized|fill|copy|add|mul|pointwise"),
)
"""Kind of kernel and what its name holds; the first that fits, else "compute"."""
_KINDS = [(kind, re.compile(pattern)) for kind, pattern in KINDS]
KNOWN = frozenset(kind for kind, _ in KINDS) | {"attention_backward"}
"""Kinds that a file may give its kernels itself, as ours do."""

SKIPPED = re.compile(
    r"Query|Get|IsCapturing|Occupancy|Attribute|PeekAt|ElapsedTime|Destroy|Create|PointerSet"
)
"""Host calls that neither launch nor wait, and are nothing but time between those that do."""
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

_ACTION = re.compile(r"(?:PP:)?(\d{1,4})(F|B|I|W|R)(\d{1,6})")
_PHASED = re.compile(r"(Forward|Backward|Weight) (\d{1,6})")
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,9})(?!\d)")


class Action(NamedTuple):
    """A pipeline step that an annotation names."""

    phase: str
    stage: int
    microbatch: int


@cache
def kind_of(name: str, category: str) -> str:
    """The kind of work of something on the GPU.

    >>> kind_of("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_nn", KERNEL)
    'gemm'
    >>> kind_of("Memset (Device)", COPY)
    'copy'
    """
    if category == COPY:
        return "copy"
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "compute")


def action(name: str) -> Action | None:
    """The pipeline step of an annotation.

    >>> action("PP:2F0"), action("Backward 3"), action("Optimizer.step#Adam.step")
    (Action(phase='F', stage=2, microbatch=0), Action(phase='B', stage=-1, microbatch=3), None)
    """
    if found := _ACTION.fullmatch(name):
        return Action(found[2], int(found[1]), int(found[3]))
    if found := _PHASED.fullmatch(name):
        return Action(found[1][0], -1, int(found[2]))
    return None


def step_of(name: str) -> int | None:
    """The number of a ``ProfilerStep#`` annotation."""
    found = _STEP.match(name)
    return int(found[1]) if found else None
