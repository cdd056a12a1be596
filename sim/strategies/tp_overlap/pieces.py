"""Overlap of sequence-parallel collectives with the GEMM beside them, by cutting both in pieces.

An all-gather and the GEMM that uses it become t pieces of the GEMM's rows and t - 1 steps of a ring
that copy engines run, each step beside a piece. A GEMM and the reduce-scatter of its output are cut
in one of two ways:

- *pipeline*, Transformer Engine's user buffers: four pieces of the GEMM's columns, each reduced and
  scattered by some SMs beside the next piece, the last one exposed (``split_overlap_rs`` in its
  comm_gemm_overlap.cpp);
- *copies*, PyTorch's asynchronous tensor parallelism on symmetric memory: t pieces of the rows,
  which copy engines send to the rank that sums them; a kernel adds up what has arrived
  (``_pipelined_produce_and_all2all`` in torch/distributed/_symmetric_memory).

Only exposed pairs are cut: backward collectives that run whole beside another GEMM ("bulk") are
hidden already. Bytes sent and FLOPs stay the same.
"""

from __future__ import annotations

from sim.builder.program import Collective, Item, Kernel, Program
from sim.builder.slots import moved
from sim.graph import Compute

SPLITS = 4  # pieces of a pipelined reduce-scatter: num_splits in Transformer Engine and NeMo


def cut(program: Program, degree: int, copies: bool = False) -> list[Item]:
    """Return the program with every exposed pair of a layer in pieces.

    With ``copies``, reduce-scatters are those of PyTorch, not of Transformer Engine.
    """
    out: list[Item] = []
    place: list[int] = []  # position of each old item's last piece
    scattered = _scatter if copies else _pipeline
    while (i := len(place)) < len(program):
        if degree > 1 and (gather := _gathered(program, i)):
            place += _gather(out, place, *gather, degree)
        elif degree > 1 and (scatter := _scattered(program, i)):
            place += scattered(out, place, *scatter, degree)
        else:
            out.append(program[i]._replace(needs=moved(program[i].needs, place)))
            place.append(len(out) - 1)
    return out


def _gathered(program: Program, i: int) -> tuple[Collective, Kernel] | None:
    """Return item i and the next, if that is a GEMM that waits for this all-gather."""
    match program[i : i + 2]:
        case [Collective(collective="all_gather") as gather, Kernel(work=Compute("gemm")) as gemm]:
            if gather.layer >= 0 and i in gemm.needs:
                return gather, gemm._replace(needs=tuple(n for n in gemm.needs if n != i))
    return None


def _scattered(program: Program, i: int) -> tuple[Kernel, Collective] | None:
    """Return item i and the next, if that reduce-scatters this GEMM's output and is exposed."""
    match program[i : i + 3]:
        case [Kernel(work=Compute("gemm")) as gemm, Collective() as scatter, *after]:
            exposed = all(i + 1 in item.needs for item in after)
            if scatter.collective == "reduce_scatter" and scatter.layer >= 0 and exposed:
                return gemm, scatter
    return None


def _gather(
    out: list[Item], place: list[int], gather: Collective, gemm: Kernel, degree: int
) -> tuple[int, int]:
    """Multiply the part that is here while the next one arrives."""
    step, piece = _step(gather, degree), _rows(gemm, degree)
    before, needs = moved(gather.needs, place), moved(gemm.needs, place)
    for k in range(degree):
        arriving = len(out)
        if k < degree - 1:
            out.append(step._replace(needs=() if k else before))
        out.append(piece._replace(needs=needs))
        needs = (arriving,)
    return _remember(out, len(out) - 3, gather), _remember(out, len(out) - 1, gemm)


def _scatter(
    out: list[Item], place: list[int], gemm: Kernel, scatter: Collective, degree: int
) -> tuple[int, int]:
    """Multiply the others' parts first and this rank's own last; each is sent when it is done."""
    step, piece = _step(scatter, degree), _rows(gemm, degree)
    needs = moved(gemm.needs, place)
    for k in range(degree):
        out.append(piece._replace(needs=() if k else needs))
        if k < degree - 1:
            out.append(step._replace(needs=(len(out) - 1,)))
    where = _remember(out, len(out) - 1, gemm), _remember(out, len(out) - 2, scatter)
    read_and_written = scatter.bytes * (1 + 1 / degree)
    work = Compute("elementwise", 0.0, read_and_written, dtype=_compute(gemm).dtype)
    out.append(Kernel(f"{scatter.name}_sum", work, gemm.phase, gemm.layer, (where[1],)))
    return where


def _pipeline(
    out: list[Item], place: list[int], gemm: Kernel, scatter: Collective, _: int
) -> tuple[int, int]:
    """Reduce and scatter each piece of the columns beside the next one, the last by itself."""
    step = scatter._replace(bytes=scatter.bytes / SPLITS, memory=(), algorithm="pipeline")
    piece, needs = _columns(gemm, SPLITS), moved(gemm.needs, place)
    for k in range(SPLITS):
        out.append(piece._replace(needs=() if k else needs))
        out.append(step._replace(needs=(len(out) - 1,)))
    return _remember(out, len(out) - 2, gemm), _remember(out, len(out) - 1, scatter)


def _step(whole: Collective, degree: int) -> Collective:
    """Return one of t - 1 ring steps, whose bytes let a rank send 1 / t of the whole buffer."""
    return whole._replace(bytes=whole.bytes / (degree - 1), memory=(), algorithm="exchange")


def _rows(whole: Kernel, pieces: int) -> Kernel:
    """Return one of some pieces of the GEMM's rows; every piece reads the other matrix again."""
    batch, m, n, k = _compute(whole).shape
    return _piece(whole, pieces, (batch, m // pieces, n, k))


def _columns(whole: Kernel, pieces: int) -> Kernel:
    """Return one of some pieces of the GEMM's columns; every piece reads the rows again."""
    batch, m, n, k = _compute(whole).shape
    return _piece(whole, pieces, (batch, m, n // pieces, k))


def _piece(whole: Kernel, pieces: int, shape: tuple[int, int, int, int]) -> Kernel:
    work = _compute(whole)
    per_element = work.bytes / _elements(*work.shape)
    part = work._replace(
        flops=work.flops / pieces, bytes=per_element * _elements(*shape), shape=shape
    )
    return whole._replace(work=part, memory=())


def _elements(batch: int, m: int, n: int, k: int) -> int:
    return batch * (m * k + k * n + m * n)


def _compute(gemm: Kernel) -> Compute:
    assert isinstance(gemm.work, Compute)
    return gemm.work


def _remember(out: list[Item], i: int, whole: Item) -> int:
    """Hand what the whole item allocates or frees to its last piece, at i."""
    out[i] = out[i]._replace(memory=whole.memory)
    return i
