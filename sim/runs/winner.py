"""Why the fastest of several ways to run a job wins: what it saves against the runner-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sim.analysis.accounting import accounting
from sim.analysis.steps import steady
from sim.memory.runtime import needed
from sim.runs.compare import Way
from sim.runs.run import Result
from sim.runs.summary import between


@dataclass(frozen=True)
class Why:
    """The fastest way that fits its GPU, the next one, and what the seconds of both go to."""

    winner: str
    runner_up: str
    before_s: float
    """The seconds of a step of the runner-up."""
    after_s: float
    parts: Mapping[str, tuple[float, float]]
    """Seconds of the runner-up and of the winner by what they go to, the largest change first."""

    def changes(self) -> dict[str, float]:
        """Return the winner's seconds less the runner-up's; they sum to the difference."""
        return {name: after - before for name, (before, after) in self.parts.items()}


def why(ways: Sequence[Way]) -> Why | None:
    """Return why the fastest way wins; None where fewer than two ran.

    Ways that fit their GPU go first; of equally fast ones the first given.
    """
    ran = [(way.name, way.result) for way in ways if way.result]
    if len(ran) < 2:
        return None
    (first, fast), (second, slow) = sorted(ran, key=lambda one: (not fits(one[1]), step(one[1])))[
        :2
    ]
    after, before = parts(fast), parts(slow)
    both = {name: (before.get(name, 0.0), after.get(name, 0.0)) for name in {**before, **after}}
    ordered = sorted(both.items(), key=lambda item: (-abs(item[1][1] - item[1][0]), item[0]))
    return Why(first, second, step(slow), step(fast), dict(ordered))


def parts(result: Result) -> dict[str, float]:
    """Return what one step's seconds go to, as :func:`accounting` says; they sum to the step."""
    found = steady(result.timeline, *result.recipe.ramps)
    shown = {name: s / found.steps for name, s in accounting(found.timeline).items()}
    apart = between(result.recipe)
    return {**shown, "between steps": apart} if apart else shown


def step(result: Result) -> float:
    """Return the seconds of one step."""
    return float(result.summary["step_time_s"])


def fits(result: Result) -> bool:
    """Return whether every rank has the memory that it needs, with context and NCCL."""
    return max(map(needed, result.summary["memory"])) <= result.cluster.gpu.memory
