"""What one stage runs for one microbatch: its operators written down in issue order.

There are programs of the forward, the whole backward, and the backward in two halves (input
gradients, weight gradients). The order is Megatron-LM's: layers in reverse, per linear the
input-gradient GEMM, then its collective beside the weight-gradient GEMM.

Besides what is kept, some memory is held for a moment only: the copy of the logits in the other
precision, the gradients of inputs on their way down (:mod:`sim.builder.backward_memory`), and a
weight gradient of 16 bits before it is added to the main gradient. (Where the GEMM adds it itself,
Megatron-LM still hands autograd an empty tensor of that size for the hooks of its
DistributedDataParallel: core/tensor_parallel/layers.py.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from schedules.input_error import InputError
from sim import strategies
from sim.builder.backward_memory import matrices
from sim.builder.blocks import OperatorBlock, stage_blocks
from sim.builder.edge import Edge
from sim.builder.job import Job
from sim.builder.program import INPUT_GRADIENTS, WEIGHT_GRADIENT, Item, Kernel, Program
from sim.builder.shares import edges
from sim.builder.writer import Writer
from sim.graph import Compute, Fixed
from sim.model.operators import Operator
from sim.model.sizes import BYTES

Edges = Mapping[str, Edge]
LOSS = "loss"  # the operator whose backward starts from fp32 logits


def stage_programs(
    job: Job,
    layers: Sequence[int],
    first: bool,
    last: bool,
    *,
    cp_rank: int = 0,
    ep_rank: int = 0,
) -> Mapping[str, Program]:
    """Return the programs F, B, I and W of a stage with these layers (their numbers).

    B is I and W merged. ``cp_rank`` and ``ep_rank`` are the rank's coordinates in its context- and
    expert-parallel groups. What the stage keeps is allocated by F and freed by B, or half by I and
    half by W. Raises InputError for a stage with nothing in it, and where the model cannot be split
    as the job says.
    """
    if not (layers or first or last):
        raise InputError("a stage has no layer, no embedding and no head; use fewer stages")
    blocks = stage_blocks(job, layers, first, last, cp_rank=cp_rank, ep_rank=ep_rank)
    around, overlap = edges(job), all(of(job) for of in strategies.hooks("beside"))
    how = job.training.weight_gradients
    made: Mapping[str, Program] = {
        "F": _forward(blocks, around),
        "B": _backward(blocks, around, overlap, how, weights=True),
        "I": _backward(blocks, around, overlap, how, weights=False),
        "W": _weight_gradients(blocks, around, overlap, how),
    }
    for change in strategies.hooks("programs"):
        made = change(job, made, blocks, last)
    return made


def _forward(blocks: Sequence[OperatorBlock], around: Edges) -> Program:
    writer = Writer()
    for block in blocks:
        begin = len(writer.items)
        _forward_operators(writer, block.operators, around, "F", block.layer)
        writer.remember(begin, block.category, block.kept, "start")
        writer.remember(begin, block.category, block.copied, "start")
        writer.remember(-1, block.category, -block.copied, "end")
    return writer.items


def _forward_operators(
    writer: Writer, operators: Sequence[Operator], around: Edges, phase: str, number: int
) -> None:
    for op in operators:
        edge = around.get(op.edge, Edge())
        if edge.before:
            name = f"{op.name}_{edge.before}"
            writer.collective(name, edge.axis, edge.before, op.crossing(edge.before), phase, number)
        for launch in op.forward:
            writer.kernel(launch, phase, number)
        if edge.after:
            name = f"{op.name}_{edge.after}"
            writer.collective(name, edge.axis, edge.after, op.buffer, phase, number)


def _backward(
    blocks: Sequence[OperatorBlock], around: Edges, overlap: bool, how: str, weights: bool
) -> Program:
    """Return the input gradients of all operators, with ``weights`` also the weight gradients."""
    writer = Writer()
    for block in reversed(blocks):
        at: int | None = None  # position at which input gradients begin
        _again(writer, block.ahead, around, block.ahead_size)
        for i, op in reversed([*enumerate(block.operators)]):
            for region in block.regions:
                if region.before == i:
                    _again(writer, [(block.layer, region.again)], around, region.size)
            begin = len(writer.items)
            at = begin if at is None else at
            _gradients(writer, op, around, block.layer, overlap, weights)
            if op.name == LOSS:
                writer.remember(begin, block.category, block.logits[0], "start")
                writer.remember(-1, block.category, -block.logits[1], "end")
            for region in block.regions:
                if region.until == i:
                    left = 0.0 if weights else region.later
                    writer.remember(-1, "recompute", left - region.size, "end")
        if at is not None and block.input_gradients:
            writer.remember(at, INPUT_GRADIENTS, block.input_gradients, "start")
            writer.remember(at, INPUT_GRADIENTS, -block.input_gradients, "end")
        left = block.kept * (1 if weights else 0.5) + block.logits[0] - block.logits[1]
        writer.remember(-1, block.category, -left, "end")
    if not writer.items:  # an embedding alone has no input that needs a gradient
        writer.items.append(Kernel("no_input_gradient", Fixed(0.0), "I"))
    _made_whole(writer, how)
    return writer.items


def _again(
    writer: Writer, layers: Sequence[tuple[int, Sequence[Operator]]], around: Edges, size: float
) -> None:
    """Run the forward of some layers' operators again, which brings back ``size`` bytes."""
    begin = len(writer.items)
    for number, operators in layers:
        _forward_operators(writer, operators, around, "R", number)
    if len(writer.items) > begin:
        writer.remember(begin, "recompute", size, "start")


def _gradients(
    writer: Writer, op: Operator, around: Edges, number: int, overlap: bool, weights: bool
) -> None:
    """Write one operator's backward.

    With ``overlap`` the gather of the saved input runs beside the input-gradient GEMM and the
    reduction of the input gradient beside the weight-gradient GEMM, as in Megatron-LM.
    """
    edge = around.get(op.edge, Edge())
    again: tuple[int, ...] = ()
    if edge.before_backward and op.backward:
        name, size = f"{op.name}_grad_{edge.before_backward}", op.crossing(edge.before_backward)
        writer.collective(name, edge.axis, edge.before_backward, size, "I", number)
    if weights and overlap:
        again = _gather_again(writer, op, around, number)
    for launch in op.backward:
        writer.kernel(launch, "I", number)
    if edge.after_backward:
        name = f"{op.name}_grad_{edge.after_backward}"
        writer.collective(name, edge.axis, edge.after_backward, op.buffer, "I", number)
    if weights and not overlap:
        again = _gather_again(writer, op, around, number)
    for k, launch in enumerate(op.weight if weights else ()):
        beside = overlap and edge.after_backward != ""
        writer.kernel(launch, "W", number, needs=() if k else again, wait=not beside)


def _gather_again(writer: Writer, op: Operator, around: Edges, number: int) -> tuple[int, ...]:
    """Gather what only the weight gradient needs whole, and return its position, if anything."""
    edge = around.get(op.edge, Edge())
    kind = edge.again or ("" if op.backward else edge.before_backward)
    if not kind:
        return ()
    name = f"{op.name}_{'input' if edge.again else 'grad'}_{kind}"
    size = op.crossing(kind)
    return (writer.collective(name, edge.axis, kind, size, "W", number, exposed=False),)


def _weight_gradients(
    blocks: Sequence[OperatorBlock], around: Edges, overlap: bool, how: str
) -> Program:
    """Return all weight gradients; a gather for one runs beside the GEMM before it."""
    writer = Writer()
    back = list(reversed(blocks))  # by position, as heads of several depths are equal
    jobs = [(k, op) for k, b in enumerate(back) for op in reversed(b.operators) if op.weight]
    gathered: list[tuple[int, ...]] = []
    for j, (k, op) in enumerate(jobs):
        block = back[k]
        for ahead, following in jobs[len(gathered) : j + 1 + overlap]:
            gathered.append(_gather_again(writer, following, around, back[ahead].layer))
        for i, launch in enumerate(op.weight):
            writer.kernel(launch, "W", block.layer, needs=() if i else gathered[j])
        if j + 1 == len(jobs) or jobs[j + 1][0] != k:
            writer.remember(-1, block.category, -block.kept / 2, "end")
            later = fsum(region.later for region in block.regions)
            writer.remember(-1, "recompute", -later, "end")
    _made_whole(writer, how)
    return writer.items


def _made_whole(writer: Writer, how: str) -> None:
    """Let weight gradients allocate their bytes: passing ones, kept ones, or those of the ends.

    In passing the layers' largest is enough, at the first kernel that makes it, because what a
    layer keeps is freed with it. Cached ones of layers stay (:mod:`sim.builder.persistent`).
    """
    sizes = {i: _weight_bytes(item) for i, item in enumerate(writer.items) if item.phase == "W"}
    inner = [i for i in sizes if writer.items[i].layer >= 0]
    ends = [i for i in sizes if writer.items[i].layer < 0]
    largest = sorted(inner, key=lambda i: -sizes[i])[:1]
    taken = {"passing": [*largest, *ends], "cached": ends, "kept": list(sizes)}[how]
    for i in taken:
        writer.remember(i, WEIGHT_GRADIENT, sizes[i], "start")
        writer.remember(-1 if how == "kept" else i, WEIGHT_GRADIENT, -sizes[i], "end")


def _weight_bytes(item: Item) -> float:
    """Return the bytes of the weight gradient that a kernel makes.

    Experts make theirs one after another, so the largest counts.
    """
    match item:
        case Kernel(work=Compute(kind="gemm" | "grouped_gemm", dtype=dtype) as work):
            width = max(BYTES[dtype], 2)  # no gradient has 8 bits
            return float(max(m * n for m, n in matrices(work)) * width)
        case Kernel(work=Compute(kind="elementwise", shape=(rows, columns), dtype=dtype)):
            return float(rows * columns * BYTES[dtype])
    return 0.0
