"""Overlap of sequence-parallel collectives with the GEMM beside them, by cutting both in pieces.

It follows the default of Transformer Engine's user buffers: an all-gather and the GEMM that uses
it, or a GEMM and the reduce-scatter of its output, become t pieces of the GEMM and t - 1 steps of a
ring, each step beside a piece. (Transformer Engine's forward reduce-scatter has four pieces of
which the last is exposed; here it is a ring too.) Only exposed pairs are cut: backward collectives
that run whole beside another GEMM ("bulk") are hidden already. Bytes sent and FLOPs stay the same.
"""

from __future__ import annotations

from sim.builder.program import Collective, Item, Kernel, Program
from sim.builder.slots import moved
from sim.graph import Compute


def cut(program: Program, degree: int) -> list[Item]:
    """Return the program with every exposed pair of a layer in ``degree`` pieces."""
    out: list[Item] = []
    place: list[int] = []  # position of each old item's last piece
    while (i := len(place)) < len(program):
        if degree > 1 and (gather := _gathered(program, i)):
            place += _gather(out, place, *gather, degree)
        elif degree > 1 and (scatter := _scattered(program, i)):
            place += _scatter(out, place, *scatter, degree)
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
    step, piece = _step(gather, degree), _piece(gemm, degree)
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
    step, piece = _step(scatter, degree), _piece(gemm, degree)
    needs = moved(gemm.needs, place)
    for k in range(degree):
        out.append(piece._replace(needs=() if k else needs))
        if k < degree - 1:
            out.append(step._replace(needs=(len(out) - 1,)))
    return _remember(out, len(out) - 1, gemm), _remember(out, len(out) - 2, scatter)


def _step(whole: Collective, degree: int) -> Collective:
    """Return one of t - 1 ring steps, whose bytes let a rank send 1 / t of the whole buffer."""
    return whole._replace(bytes=whole.bytes / (degree - 1), memory=(), algorithm="exchange")


def _piece(whole: Kernel, degree: int) -> Kernel:
    """Return 1 / t of the GEMM's rows; every piece reads the other matrix again."""
    assert isinstance(whole.work, Compute)
    batch, m, n, k = whole.work.shape
    per_element = whole.work.bytes / (batch * (m * k + k * n + m * n))
    rows = m // degree
    work = whole.work._replace(
        flops=whole.work.flops / degree,
        bytes=per_element * batch * (rows * k + k * n + rows * n),
        shape=(batch, rows, n, k),
    )
    return whole._replace(work=work, memory=())


def _remember(out: list[Item], i: int, whole: Item) -> int:
    """Hand what the whole item allocates or frees to its last piece, at i."""
    out[i] = out[i]._replace(memory=whole.memory)
    return i
