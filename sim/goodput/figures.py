"""The figures that ``traincast goodput`` gives, as ``--json`` has them."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from sim import units
from sim.goodput import inputs, spread
from sim.goodput.question import Question

Figures = dict[str, Any]


def figures(
    of: Question, kind: str, size: float, intervals: Mapping[str, int], found: spread.Runs
) -> Figures:
    """Return all figures of a run, those of the chosen interval first."""
    recipe, faults, chosen = of.recipe, of.faults, intervals["chosen"]
    tokens = None if recipe.model.blocks else of.steps * recipe.training.global_batch
    exact = faults.spares is None and not faults.slow
    ideal = of.steps * of.step
    return {
        **spread.figures(found[chosen], ideal),
        "expected_s": of.expected(chosen) if exact else None,
        "steps": of.steps,
        "tokens": None if tokens is None else tokens * recipe.sequence,
        "step_s": of.step,
        "mtbf_s": None if faults.mtbf == inf else faults.mtbf,
        "rates_per_day": {name: rate * 86_400.0 for name, rate in faults.rates.items()},
        "checkpoint": {"kind": kind, "bytes": size, **of.costs._asdict()},
        "intervals": {
            name: {
                "steps": interval,
                "every_s": interval * of.step,
                **spread.figures(found[interval], ideal),
            }
            for name, interval in intervals.items()
        },
        **spread.bill(found[chosen], recipe, of.spec),
        "assumed": {
            name: inputs.defaults()[_entry(name)]["value"]
            for name in inputs.assumed(recipe, of.spec)
        },
        "warnings": _warnings(of, chosen),
    }


def _entry(key: str) -> str:
    return "storage_node" if key == "storage.node" else key.partition(".")[2]


def _warnings(of: Question, chosen: int) -> list[str]:
    """Return what is legal and hardly meant."""
    between, mtbf, costs = chosen * of.step, of.faults.mtbf, of.costs
    out = []
    if between > mtbf:
        out.append(
            f"the job fails every {units.long(mtbf)} and saves only every {units.long(between)}: "
            "most work is done more than once"
        )
    if of.pace(chosen).wait(between):
        out.append(
            f"a checkpoint is safe only after {units.long(costs.settle)}, so the next one, "
            f"{units.long(between)} later, waits for it"
        )
    return out
