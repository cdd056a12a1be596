"""A training run of a recipe: its steps, what they take, and the intervals to look at."""

from __future__ import annotations

from math import ceil, inf
from typing import NamedTuple

from schedules.input_error import InputError
from sim import units
from sim.goodput import formulas
from sim.goodput.faults import Faults
from sim.goodput.inputs import Spec
from sim.goodput.pace import Costs, Pace
from sim.recipe.recipe import Recipe


class Question(NamedTuple):
    """A run of so many steps of a recipe's job."""

    recipe: Recipe
    spec: Spec
    steps: int
    step: float
    costs: Costs
    faults: Faults

    def pace(self, interval: int) -> Pace:
        """Return the run with so many steps from a checkpoint to the next."""
        return Pace(self.steps, self.step, interval, self.costs)

    def expected(self, interval: int) -> float:
        """Return the expected seconds in closed form, without slow steps and waiting."""
        return formulas.expected(self.pace(interval), self.faults.mtbf, self.recovery)

    @property
    def recovery(self) -> float:
        """Seconds from a failure to the first step, if no other failure comes."""
        return self.faults.detection + self.faults.restart + self.costs.read


def length(recipe: Recipe, tokens: str | float | None, steps: int | None) -> int:
    """Return the steps of the run; raise InputError unless exactly one of both is given."""
    if (tokens is None) == (steps is None):
        raise InputError("give either tokens, such as 15T, or a number of steps")
    if steps is None:
        if recipe.model.blocks:
            raise InputError("this model trains on images, which have no tokens; give steps")
        number = units.amount(tokens) if isinstance(tokens, str) else float(tokens or 0.0)
        if not 0.0 < number < inf:
            raise InputError(f"the run has {number:g} tokens; it must have some")
        steps = ceil(number / (recipe.training.global_batch * recipe.sequence))
    if not 1 <= steps <= 10**9:
        raise InputError(f"the run has {steps:,} steps; it must have from 1 to 1,000,000,000")
    return steps


def intervals_of(of: Question) -> dict[str, int]:
    """Return the steps between checkpoints: those of the run, the best, and those of formulas."""
    best = formulas.best(of.steps, of.step, of.costs, of.faults.mtbf)
    out = {"best": best}
    if of.faults.mtbf < inf:
        for name, formula in (("young", formulas.young), ("daly", formulas.daly)):
            out[name] = _steps(of, formula(of.costs.stall, of.faults.mtbf))
    given = of.recipe.checkpoint.interval or "best"
    if isinstance(given, str) and given not in ("best", "young", "daly"):
        given = _steps(of, units.duration(given))
    chosen = min(given, of.steps) if isinstance(given, int) else out.get(given, best)
    return {"chosen": chosen, **out}


def _steps(of: Question, seconds: float) -> int:
    return max(1, round(min(seconds / of.step, of.steps)))
