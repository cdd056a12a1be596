"""A strategy by path: only the MLP and its residual of each layer, as some recordings ran it."""

from __future__ import annotations

from sim.builder.program import Item, Program

PARTS = ("fc1", "gelu", "fc2", "mlp_residual")


def mlp_blocks(kind: str, program: Program) -> Program:
    """Return the program without attention and norms; waits for them move to what comes before.

    No gradient of the model's input is made, since nothing before the first linear needs it.
    """
    kept = [i for i, item in enumerate(program) if _runs(item)]
    place = {i: k for k, i in enumerate(kept)}
    out = []
    for i in kept:
        needs = (_latest(n, place) for n in program[i].needs if isinstance(n, int))
        out.append(program[i]._replace(needs=tuple(n for n in needs if n is not None), memory=()))
    return out


def _runs(item: Item) -> bool:
    first = item.layer == 0 and item.name.startswith(("fc1_dgrad", "fc1_grad_all_reduce"))
    return item.name.startswith(PARTS) and not first


def _latest(need: int, place: dict[int, int]) -> int | None:
    """Return where the last item up to an old position now stands; None if there is none."""
    left = [i for i in place if i <= need]
    return place[max(left)] if left else None
