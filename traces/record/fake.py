"""Finds what torch would send in a step of a large job, in one process that sends nothing.

torch's fake process group lets one process believe that it is a rank of many; with tensors that
have no data, a step of FSDP2 × TP of any size runs on a laptop. The workload becomes a table of
collectives and one of our graphs. It is compared with our own graph of the same recipe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from schedules.input_error import InputError
from sim import strategies
from sim.builder.job import Job
from sim.builder.shares import edges
from sim.graph import Communication, Graph
from sim.model.sizes import padded_vocab
from traces.record import machine, workers

Event = Mapping[str, Any]
Row = tuple[str, float, tuple[int, ...]]  # collective, bytes of the whole buffer, ranks


class CollectiveDifference(NamedTuple):
    """Collectives that only one side has, and why."""

    reason: str
    ours: Counter[Row]
    torchs: Counter[Row]


def task(job: Job) -> workers.Task:
    """Return what the worker is told.

    Raises InputError for a job that is no FSDP2 × TP.
    """
    model, p, sharding = job.model, job.parallelism, job.data.sharding
    fsdp = p.model_dump()["fsdp"] or {}
    wrong = [
        (job.mesh.pp > 1 or job.mesh.cp > 1 or job.mesh.ep > 1, "pp, cp and ep of 1"),
        (sharding is None or sharding.replicas > 1 or fsdp.get("kind") != "fsdp2"
         or fsdp["wrap"] != "layer", 'fsdp = { kind = "fsdp2" }'),
        (p.tp > 1 and not edges(job)["column"].before, "sp = true beside tp"),
        (model.experts or model.mla or model.mtp or model.resnet, "a dense transformer"),
        (not model.gated or model.norm != "rms" or model.bias or model.qkv_bias,
         "RMS norms, a gated MLP and no biases, as Llama has"),
        (model.tied, "a head of its own (tied = false)"),
        (any(again(job) for again in strategies.hooks("rerun")), 'recompute = "none"'),
    ]  # fmt: skip
    if needed := [what for is_wrong, what in wrong if is_wrong]:
        raise InputError(f"record fake takes FSDP2 with TP of a Llama; it needs {needed[0]}")
    return {
        "task": "fake_run",
        "world": job.mesh.world,
        "tp": p.tp,
        "reshard": fsdp["reshard_after_forward"] is not False,
        "micro_batch": job.training.micro_batch,
        "sequence": model.sequence,
        "microbatches": len(job.plan[0]) // 2,
        "model": {
            "layers": model.layers,
            "hidden": model.hidden,
            "heads": model.heads,
            "kv_heads": model.kv_heads,
            "head_dim": model.head_dim,
            "ffn": model.ffn,
            "vocab": padded_vocab(model, p.tp),
        },
    }


def record(job: Job, timeout: float = 300.0) -> list[Event]:
    """Return what rank 0 of the job issues in a step: collectives and matrix products, in order."""
    machine.require_torch()
    told = task(job)
    found = workers.run([told], 1, timeout, fake=told["world"])
    events: list[Event] = found[0][0]["events"]
    return events


def rows(events: Sequence[Event]) -> Counter[Row]:
    """Count how often each collective is issued."""
    return Counter(
        (event["collective"], float(event["bytes"]), tuple(event["ranks"]))
        for event in events
        if "collective" in event and len(event["ranks"]) > 1
    )


def rows_of(graph: Graph, rank: int = 0) -> Counter[Row]:
    """Count the same for a rank of a graph."""
    works = (graph.works[graph.work[i]] for i in range(len(graph)) if graph.rank[i] == rank)
    return Counter(
        (work.collective, float(work.bytes), work.ranks)
        for work in works
        if isinstance(work, Communication) and len(work.ranks) > 1
    )


def differences(job: Job, ours: Counter[Row], torchs: Counter[Row]) -> list[CollectiveDifference]:
    """Return what only one side issues, reason by reason; unexplained ones come last."""
    left, right = ours - torchs, torchs - ours
    out = []
    for reason, one, other in reasons(job):
        a = Counter({row: n for row, n in left.items() if one(row)})
        b = Counter({row: n for row, n in right.items() if other(row)})
        left, right = left - a, right - b
        if a or b:
            out.append(CollectiveDifference(reason, a, b))
    if left or right:
        out.append(CollectiveDifference("", left, right))
    return out


Test = Callable[[Row], bool]


def reasons(job: Job) -> list[tuple[str, Test, Test]]:
    """Return why two graphs of one step may differ, and which collectives that explains."""
    tp, hidden = job.parallelism.tp, job.model.hidden
    activation = float(job.training.micro_batch * job.model.sequence * hidden * 2)
    norms = 2 * job.model.layers + 1

    def regathered(row: Row) -> bool:
        return row[0] == "all_gather" and row[1] == activation and len(row[2]) == tp

    def norm_of_norms(row: Row) -> bool:
        return row[0] == "all_reduce" and row[1] < 4 * 16 * (job.model.layers + 1)

    def split_norms(row: Row) -> bool:
        return row[0] == "all_reduce" and row[1] == 4.0 * norms * hidden / job.mesh.dp

    def whole_norm(row: Row) -> bool:
        return row[0] == "all_reduce" and row[1] == 2.0 * hidden

    return [
        ("Megatron's sequence parallelism, ours, keeps the split inputs of the column-parallel "
         "linears and gathers them again for weight gradients; torch keeps them gathered",
         regathered, _never),
        ("gradients of norms, which each tensor parallel rank has for its tokens alone: torch "
         "sums each as it is made, in bf16; ours sums them all, split over dp, in fp32",
         split_norms, whole_norm),
        ("the norm of the gradients: ours sums one number over all ranks; torch the norms of all "
         "tensors at once, over dp and then over tp", norm_of_norms, norm_of_norms),
    ]  # fmt: skip


def _never(_: Row) -> bool:
    return False


def table(found: Counter[Row]) -> list[dict[str, Any]]:
    """Return rows as JSON, the largest traffic first."""
    order = sorted(found.items(), key=lambda item: (-item[0][1] * item[1], item[0]))
    return [
        {"collective": name, "bytes": size, "ranks": list(ranks), "count": count}
        for (name, size, ranks), count in order
    ]
