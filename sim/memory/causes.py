"""Sentences about a memory peak: which decision of the recipe causes what is live there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import fsum
from typing import Any

from sim import units
from sim.memory.at_peak import KEPT, AtPeak, Live, in_flight, listed

ROWS = 8  # of what is live, in figures


@dataclass(frozen=True)
class Decisions:
    """The decisions of a recipe that determine what a rank holds."""

    schedule: str
    ranks: int  # of the pipeline
    rank: int  # among them
    microbatches: int
    gathering: str = ""
    """How parameters are gathered: "prefetch depth 2", "two buffers"; empty if they are not."""


def figures(of: AtPeak, decided: Decisions) -> dict[str, Any]:
    """Return the ``at_peak`` entry of summary.json: the op, the largest rows and the causes.

    There is one row for all layers of a category, stage and microbatch. Stage and microbatch are
    None where the row has none, or several. Sizes are in bytes.
    """
    rows: dict[tuple[str, int, int], list[Live]] = {}
    for one in of.live:
        rows.setdefault(one[:3], []).append(one)
    live: list[dict[str, Any]] = [
        {
            "category": category,
            "stage": stage if stage >= 0 else None,
            "microbatch": microbatch if microbatch >= 0 else None,
            "layers": listed(sorted({one.layer for one in some} - {-1})),
            "bytes": fsum(one.bytes for one in some),
        }
        for (category, stage, microbatch), some in rows.items()
    ]
    live.sort(key=lambda row: (-row["bytes"], row["category"]))
    return {"op": of.op, "live": live[:ROWS], "causes": list(causes(of, decided))}


def causes(of: AtPeak, decided: Decisions) -> Iterator[str]:
    """Yield a sentence, without full stop, for each decision that holds memory at the peak."""
    for stage, held in in_flight(of).items():
        size = _size(of, KEPT, stage, {*held})
        many = f"{len(held)} microbatch{'es' * (len(held) != 1)}"
        yield (
            f"stage {stage} holds activations of {many} ({listed(held)}; {size}): "
            f"{_why(decided, len(held))}"
        )
    for stage in sorted({stage for stage, _ in of.deferred}):
        held = sorted(m for s, m in of.deferred if s == stage)
        size = _size(of, KEPT, stage, {*held})
        yield (
            f"stage {stage} holds what W needs of microbatch{'es' * (len(held) != 1)} "
            f"{listed(held)} ({size}): {decided.schedule} defers W, whose I is over"
        )
    yield from _gathered(of, decided)
    yield from _others(of)


def _why(decided: Decisions, held: int) -> str:
    p, q, m = decided.ranks, decided.rank, decided.microbatches
    if held == 1:
        return "its backward runs now or comes next"
    if decided.schedule == "gpipe" and held == m:
        return "GPipe runs all forwards before the first backward"
    if decided.schedule == "one_f_one_b" and held == min(p - q, m):
        ahead = f"p - rank = {p} - {q} = {p - q}" if held == p - q else f"all {m}"
        return f"1F1B runs {ahead} forwards before the first backward"
    if decided.schedule in ("zb_2p", "zb_h2") and held == 2 * (p - q) - 1:
        ahead = f"2 (p - rank) - 1 = 2 ({p} - {q}) - 1 = {held}"
        return f"{decided.schedule} runs {ahead} forwards before the first backward"
    return f"{decided.schedule} runs so many forwards before the backward of the first of them"


def _gathered(of: AtPeak, decided: Decisions) -> Iterator[str]:
    rows = [row for row in of.live if row.category == "gathered_parameters"]
    if not rows:
        return
    layers = sorted({row.layer for row in rows if row.layer >= 0})
    root = any(row.layer < 0 for row in rows)
    what = [f"layer{'s' * (len(layers) != 1)} {listed(layers)}"] * bool(layers)
    what += ["the root unit"] * root
    size = units.size(fsum(row.bytes for row in rows))
    how = f", by {decided.gathering}" if decided.gathering and len(layers) > 1 else ""
    yield f"gathered parameters of {' and '.join(what)} ({size}){how}"


SAID = {
    "logits": "logits are held for the loss and its gradient, as two copies while they are cast",
    "recompute": "activations that were discarded are made again for a backward",
    "optimizer_copies": "fp32 copies of the optimizer's state are made for the update",
    "gradient_buffers": "whole gradients wait for their reduction",
}


def _others(of: AtPeak) -> Iterator[str]:
    sums: dict[str, float] = {}
    for row in of.live:
        sums[row.category] = sums.get(row.category, 0.0) + row.bytes
    by_size: Mapping[str, float] = dict(sorted(sums.items(), key=lambda one: (-one[1], one[0])))
    for category, size in by_size.items():
        if category in SAID:
            layers = sorted({row.layer for row in of.live if row.category == category} - {-1})
            where = f", layer{'s' * (len(layers) != 1)} {listed(layers)}" if layers else ""
            yield f"{SAID[category]} ({units.size(size)}{where})"


def _size(of: AtPeak, category: str, stage: int, microbatches: set[int]) -> str:
    return units.size(
        fsum(
            row.bytes
            for row in of.live
            if row.category == category and row.stage == stage and row.microbatch in microbatches
        )
    )
