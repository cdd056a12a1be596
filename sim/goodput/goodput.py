"""What failures make of a training run: its time, its cost, and where they go."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path

from schedules.input_error import InputError
from sim import units
from sim.analysis.steps import steady
from sim.builder.job import Job
from sim.goodput import formulas, inputs, kinds
from sim.goodput.figures import Figures, figures
from sim.goodput.process import simulate
from sim.goodput.question import Question, intervals_of, length
from sim.goodput.state import state
from sim.machine.topology import read, room
from sim.recipe.recipe import Recipe
from sim.runs.run import Report, job_of, load, run
from sim.runs.summary import step_seconds

MOST_FAILURES = 2e6
"""The most failures that are simulated, of all runs together."""


def goodput(
    recipe: Recipe | str | Path,
    overrides: Mapping[str, object] | None = None,
    *,
    tokens: str | float | None = None,
    steps: int | None = None,
    step_time: str | float | None = None,
    runs: int = 50,
    report: Report = lambda *_: None,
) -> Figures:
    """Return what becomes of a training run with failures and checkpoints.

    The run has ``steps`` steps, or those of so many ``tokens``, a number or text such as "15T". A
    step takes ``step_time`` (seconds, or text such as "6 s"), or else what its simulation gives.
    ``runs`` runs are simulated from the recipe's seed on. docs/goodput.md has the keys; times are
    seconds. Raises InputError for a recipe that cannot run, or a run that would hardly end.
    """
    if not isinstance(recipe, Recipe):
        recipe = load(recipe, overrides)
    elif overrides:
        raise InputError("overrides go over a recipe file; give goodput() the path of one")
    if not 1 <= runs <= 10_000:
        raise InputError(f"the number of runs is {runs:,}; it must be from 1 to 10,000")
    spec = room(read(recipe.cluster.topology), recipe.cluster.gpus)
    wanted = length(recipe, tokens, steps)
    faults, ways = inputs.faults(recipe, spec), inputs.paths(recipe, spec)
    job, step = _step(recipe, step_time, report)
    kind, bytes_ = recipe.checkpoint.kind or "blocking", state(job, spec["node"]["gpus"])
    of = Question(recipe, spec, wanted, step, kinds.costs(kind, bytes_, ways), faults)
    intervals = intervals_of(of)
    _possible(of, {*intervals.values()}, runs)
    _few_spells(of, {*intervals.values()}, runs)
    found = {}
    for k, interval in enumerate(sorted({*intervals.values()})):
        report("simulating failures", k, len({*intervals.values()}))
        seeds = [f"{recipe.simulation.seed} {one}" for one in range(runs)]
        found[interval] = [simulate(of.pace(interval), faults, seed) for seed in seeds]
    return figures(of, kind, bytes_.total, intervals, found)


def _step(recipe: Recipe, given: str | float | None, report: Report) -> tuple[Job, float]:
    """Return the job, and the seconds of its step: those given, or those simulated."""
    if given is None:
        result = run(recipe, report=report)
        return result.job, step_seconds(recipe, steady(result.timeline, *recipe.ramps))
    step = units.duration(given) if isinstance(given, str) else float(given)
    if not 0.0 < step < inf:
        raise InputError(f"a step of {step:g} s is not a time above 0")
    return job_of(recipe), step


def _few_spells(of: Question, intervals: set[int], runs: int) -> None:
    """Raise InputError if more spells of slow nodes would come than can be simulated."""
    if slow := of.faults.slow:
        share = min(1.0, slow.lasts / slow.between)
        longer = 1.0 + share * (max(slow.factors) - 1.0)
        most = longer * max(map(of.expected, intervals)) / slow.between * runs
        if max(most, slow.lasts / slow.between) > MOST_FAILURES:
            raise InputError(
                f"a node of the job turns slow every {units.long(slow.between)}, which is too "
                "often to simulate; lengthen failures.slow.between, or ask for fewer tokens or runs"
            )


def _possible(of: Question, intervals: set[int], runs: int) -> None:
    """Raise InputError if the run would fail too often to end, or to be simulated."""
    mtbf = of.faults.mtbf
    for interval in intervals if mtbf < inf else ():
        late = interval * of.step + of.costs.stall + of.costs.settle + of.recovery
        if late > formulas.MOST * mtbf or of.expected(interval) / mtbf > MOST_FAILURES / runs:
            times = (mtbf, of.recovery, interval * of.step)
            fails, recovers, saves = map(units.long, times)
            raise InputError(
                f"the job fails every {fails}, recovers in {recovers} and saves every {saves}, "
                "which are too many failures to simulate; shorten failures.detection, "
                "failures.restart or checkpoint.interval, or ask for fewer tokens or runs"
            )
