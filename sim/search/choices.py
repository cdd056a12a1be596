"""What a search tries of each key, given what has been chosen of the keys before it.

These choices only leave out what is never legal, and what no search should try: kernels of few
tokens, and tensor parallelism over more GPUs than a node has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import gcd
from typing import TYPE_CHECKING, Any

import schedules
from sim.recipe.legality import even

if TYPE_CHECKING:
    from sim.search.space import Space

Layout = Mapping[str, Any]
SHORTEST = 1024
"""Tokens of a sequence that a rank of cp keeps: with fewer no kernel fills a GPU."""
MOST_SAMPLES = 8
"""Samples of a microbatch that are tried, powers of two; a recipe's own is tried too."""
DEGREES = tuple(f"parallelism.{axis}" for axis in ("tp", "cp", "pp", "dp", "ep", "etp"))
MOST_CHUNKS = 8
SCHEDULES = ("one_f_one_b", "interleaved_1f1b", "zb_h1")
"""Schedules that are tried besides the recipe's own: those of Megatron-LM, and the one without a
search that needs no more memory than 1F1B."""


def divisors(n: int) -> list[int]:
    """Return the numbers that divide n, in ascending order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [k for k in range(1, n + 1) if n % k == 0]


def _rest(layout: Layout) -> int:
    """Return over how many GPUs each rank so far is still to be split."""
    for axis in ("tp", "cp", "pp"):
        degree = layout.get(f"parallelism.{axis}", 1)
        if layout["cluster.gpus"] % degree:
            return 0
        layout = {**layout, "cluster.gpus": layout["cluster.gpus"] // degree}
    return int(layout["cluster.gpus"])


def _tp(of: Space, layout: Layout) -> Sequence[object]:
    heads = of.base.model.heads or 1
    return [tp for tp in divisors(gcd(_rest(layout), heads)) if tp <= of.node]


def _cp(of: Space, layout: Layout) -> Sequence[object]:
    sequence = of.base.sequence
    if of.base.model.mla:
        return (1,)
    able = [cp for cp in divisors(_rest(layout)) if sequence % (2 * cp) == 0]
    return [cp for cp in able if cp == 1 or sequence // cp >= SHORTEST] or [1]


def _pp(of: Space, layout: Layout) -> Sequence[object]:
    return [pp for pp in divisors(_rest(layout)) if pp <= (of.base.model.layers or 1)]


def _dp(of: Space, layout: Layout) -> Sequence[object]:
    dp = _rest(layout)
    return [dp] if dp and of.base.training.global_batch % dp == 0 else []


def _copies(layout: Layout) -> int:
    """Return how many ranks have the same parameters, but for experts."""
    return int(layout["parallelism.cp"] * layout["parallelism.dp"])


def _ep(of: Space, layout: Layout) -> Sequence[object]:
    ranks = layout["parallelism.tp"] * _copies(layout)
    return divisors(gcd(ranks, of.base.model.experts or 1))


def _etp(of: Space, layout: Layout) -> Sequence[object]:
    ranks, tp = layout["parallelism.tp"] * _copies(layout), layout["parallelism.tp"]
    able = dict.fromkeys((1, tp)) if of.base.model.experts else (1,)
    return [etp for etp in able if ranks % (layout["parallelism.ep"] * etp) == 0]


def _sp(of: Space, layout: Layout) -> Sequence[object]:
    if layout["parallelism.tp"] == 1:
        return (False,)
    return (True,) if of.base.model.experts else of.tried["parallelism.sp"]


def _zero(of: Space, layout: Layout) -> Sequence[object]:
    return (0,) if _copies(layout) == 1 else range(4)


def _fsdp(of: Space, layout: Layout) -> Sequence[object]:
    if layout["parallelism.zero"] or _copies(layout) == 1:
        return (None,)
    own = of.data.get("parallelism", {}).get("fsdp")
    return (None, own) if own else of.tried["parallelism.fsdp"]


def _micro_batch(of: Space, layout: Layout) -> Sequence[object]:
    own = of.own.training.micro_batch if of.own else 1
    each = of.base.training.global_batch // layout["parallelism.dp"]
    powers = [2**k for k in range(MOST_SAMPLES.bit_length()) if 2**k <= MOST_SAMPLES]
    return [size for size in sorted({*powers, own}) if each % size == 0]


def _name(of: Space, layout: Layout) -> Sequence[object]:
    if layout["parallelism.pp"] == 1:
        return SCHEDULES[:1]
    own = of.own.schedule.name if of.own and not of.own.schedule.csv else SCHEDULES[0]
    return tuple(dict.fromkeys((own, *SCHEDULES)))


def _chunks(of: Space, layout: Layout) -> Sequence[object]:
    if "chunks" not in schedules.options(layout["schedule.name"]):
        return (None,)
    layers, pp = of.base.model.layers or 1, layout["parallelism.pp"]
    able = [v for v in range(2, MOST_CHUNKS + 1) if v * pp <= layers]
    return [v for v in able if layers % (v * pp) == 0] or able[:1]


def _split(of: Space, layout: Layout) -> Sequence[object]:
    """Return the recipe's own layers where it has as many stages, else layers spread evenly."""
    layers = of.base.model.layers or 1
    chunks = schedules.stages_per_rank(layout["schedule.name"], layout["schedule.chunks"])
    stages = layout["parallelism.pp"] * chunks
    own = of.own.layers_per_stage if of.own else ()
    if len(own) == stages:
        return [list(own)]
    return [list(even(layers, stages))] if stages <= layers else []


def _declared(key: str) -> Callable[[Space, Layout], Sequence[object]]:
    return lambda of, layout: of.tried[key]


def _offload(of: Space, layout: Layout) -> Sequence[object]:
    return (of.data.get("training", {}).get("offload"),)


CHOICES: dict[str, Callable[[Space, Layout], Sequence[object]]] = {
    "parallelism.tp": _tp,
    "parallelism.cp": _cp,
    "parallelism.pp": _pp,
    "parallelism.dp": _dp,
    "parallelism.ep": _ep,
    "parallelism.etp": _etp,
    "parallelism.sp": _sp,
    "parallelism.zero": _zero,
    "parallelism.fsdp": _fsdp,
    "training.micro_batch": _micro_batch,
    "schedule.name": _name,
    "schedule.chunks": _chunks,
    "schedule.layers_per_stage": _split,
    "training.recompute": _declared("training.recompute"),
    "training.offload": _offload,
}
