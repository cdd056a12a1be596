"""The main job in one call: from a recipe to its timeline and its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import schedules
from schedules.input_error import InputError
from sim import units
from sim.builder.job import Job, without_plan
from sim.builder.training_step import training_step
from sim.engine import Stats, simulate
from sim.engine.choice import chosen
from sim.graph import Communication, Graph, Longs
from sim.html import table
from sim.machine import cluster as clusters
from sim.machine.cluster import Cluster
from sim.machine.hardware import Machine
from sim.machine.price import price
from sim.perturbations import perturbed, slowed
from sim.recipe import recipe_file
from sim.recipe.legality.products import able
from sim.recipe.recipe import Recipe
from sim.runs import verdict
from sim.runs.drawn import Drawn, drawn
from sim.runs.fold import Lanes, candidates, loads, parting, ways
from sim.runs.hosted import Issuer, is_late, issuer, pace, with_host
from sim.runs.kept import Kept, alike
from sim.runs.latencies import MOST_UNLIKE, exact, good_enough
from sim.runs.order_choice import searched
from sim.runs.shared import cluster_of
from sim.runs.slowest import with_slowest
from sim.timeline import Timeline

if TYPE_CHECKING:
    from sim.runs.summary import Summary

MOST_KEPT = 200_000
"""The most ops of a step that is kept for the next configurations of a sweep."""

Report = Callable[[str, int, int], object]
"""A function that is called with what is done now, how much is done, and how much there is (both 0
if that is unknown)."""


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a run: the timeline, and everything that it came from."""

    recipe: Recipe
    job: Job
    cluster: Cluster
    lanes: Lanes
    machine: Machine
    timeline: Timeline
    wall: float  # seconds that building and simulating took
    boost: Timeline  # the step at boost clock: the timeline itself where no power limits it
    later: float  # seconds by which folding may make it too long
    drawn: Drawn | None = None  # the replicas, where only a sample of them is simulated

    def __dir__(self) -> list[str]:
        """Return the names of its attributes, for completion."""
        return [*(one.name for one in fields(self)), "summary"]

    def __repr__(self) -> str:
        """Return the job in one line, which a prompt shows."""
        job = f"{verdict.name(self.recipe)}, {verdict.split(self.recipe)}"
        return f"{self._title()}, {job}, {self.timeline!r}"

    def _title(self) -> str:
        return f"Result: {self.recipe.cluster.gpus:,} {self.cluster.gpu.name}"

    def _repr_html_(self) -> str:
        """Return a table of the job and its main figures, which a notebook shows."""
        recipe = self.recipe
        ops = f"{len(self.timeline.graph):,} on {len(self.timeline.graph.ranks()):,} ranks"
        rows = [
            ("model", verdict.name(recipe)),
            ("split", f"{verdict.split(recipe)}; {recipe.microbatches} microbatches"),
            ("step", units.seconds(self.summary["step_time_s"])),
            *self.summary.lines(),
            ("simulated ops", f"{ops} in {units.seconds(self.wall)}"),
        ]
        return table(self._title(), rows)

    @cached_property
    def summary(self) -> Summary:
        """The numbers of ``summary.json``; docs/summary.md says what each is."""
        from sim.runs.summary import summary  # and the analyses, which a check does not need

        folded = self.lanes.axes, self.later
        priced, graph = (self.machine, self.boost), self.timeline.graph
        found = summary(
            self.recipe, self.job, self.cluster, folded, self.timeline, priced, self.wall
        )
        if self.lanes.alike:
            found["simulation"]["classes"] = len(self.lanes.alike)
        if self.drawn:
            found["simulation"]["replicas_drawn"] = self.drawn.replicas
            found["simulation"]["noise_error_s"] = self.drawn.error
        found["host"] = pace(self.recipe, graph, self.machine.alone[graph.work])._asdict()
        return found


def load(path: str | Path, overrides: Mapping[str, object] | None = None) -> Recipe:
    """Read a recipe file, put ``overrides`` over it and fill in all defaults.

    ``overrides`` are by dotted key: ``{"parallelism.pp": 4}``. Raises InputError for a recipe that
    does not describe a job.
    """
    return recipe_file.load(path, overrides)


def run(
    recipe: Recipe | str | Path,
    overrides: Mapping[str, object] | None = None,
    report: Report = lambda *_: None,
    prepared: Callable[[Graph], object] = lambda _: None,
    cluster: Cluster | None = None,
) -> Result:
    """Simulate one training step.

    ``overrides`` are put over the recipe file: ``{"parallelism.pp": 4}``. ``report`` is told how
    far the run is. ``prepared`` is called with the graph before it is simulated, and may raise.
    ``cluster``, if given, takes the place of the recipe's. Raises InputError for a recipe that
    cannot run, and DeadlockError for an order that gets stuck.
    """
    if not isinstance(recipe, Recipe):
        recipe = load(recipe, overrides)
    elif overrides:
        raise InputError("overrides go over a recipe file; give run() the path of one")
    begin, engine = perf_counter(), recipe.simulation.engine
    chosen(engine, 0)  # refused, if it cannot run here
    report("building the graph", 0, 0)
    cluster = cluster or cluster_of(recipe)
    able(recipe, recipe.cluster.topology, cluster.gpu.peak)
    job = job_of(recipe, cluster)
    cluster = slowed(cluster, recipe.perturbations)
    what = perturbed(recipe, job)
    fold = recipe.simulation.fold == "auto"
    lanes, graph, machine = prepare(
        job, cluster, fold, issuer(recipe), what.kinds(), what.sample is not None
    )
    if not what.fleet:
        machine = with_slowest(job, cluster.gpu.spread, graph, machine)
    if what:
        graph, machine = what.paused(graph), what.machine(graph, machine)
    prepared(graph)

    def progress(done: int, of: int) -> None:
        report("simulating", done, of)

    stats = Stats(asks_later=True)
    timeline = simulate(graph, machine, progress, stats, engine)
    later = stats.later or 0.0
    if what.timed:
        stats = Stats()
        timeline = simulate(what.paused_at(timeline), machine, progress, stats, engine)
    sample, whole = None, graph
    if what.sample is not None:

        def again(graph: Graph, machine: Machine) -> Timeline:
            nonlocal stats
            stats = Stats()
            return simulate(graph, machine, progress, stats, chosen(engine, len(whole)).name)

        sample = drawn(timeline, machine, what.replica(), what.sample, again)
        timeline = sample.timeline
    boost, wall = stats.boost or timeline, perf_counter() - begin
    return Result(recipe, job, cluster, lanes, machine, timeline, wall, boost, later, sample)


def prepare(
    job: Job,
    cluster: Cluster,
    fold: bool = True,
    host: Issuer | None = None,
    kinds: Longs | None = None,
    sample: bool = False,
) -> tuple[Lanes, Graph, Machine]:
    """Return the lanes that are simulated, the graph of a job, and its prices on a cluster.

    With ``fold``, ranks are folded as far as that is proven exact, but for latencies, for which see
    :mod:`sim.runs.latencies`. ``host`` issues the ops, unless it is never late. ``kinds`` tells
    ranks apart (see :func:`sim.runs.fold.candidates`). In a ``sample`` of replicas, latencies
    unfold none. Raises InputError where too many ranks would be simulated.
    """
    if job.parallelism.strategy or not _keeping.get():  # the file of a strategy may change
        return _prepared(job, cluster, fold, host, kinds, sample)
    key = (
        cluster,
        alike(job),
        fold,
        repr(host),
        None if kinds is None else kinds.tobytes(),
        sample,
    )
    return _steps.of(key, lambda: _prepared(job, cluster, fold, host, kinds, sample))


_steps = Kept[tuple[Lanes, Graph, Machine]](4, small=lambda found: len(found[1]) <= MOST_KEPT)
_keeping: ContextVar[bool] = ContextVar("_keeping", default=False)


@contextmanager
def keeping() -> Iterator[None]:
    """Let runs inside take steps that others have prepared: of the same job on the same cluster."""
    before = _keeping.set(True)
    try:
        yield
    finally:
        _keeping.reset(before)


def _prepared(
    job: Job,
    cluster: Cluster,
    fold: bool,
    host: Issuer | None,
    kinds: Longs | None,
    sample: bool,
) -> tuple[Lanes, Graph, Machine]:
    left = ways(job, cluster, kinds)
    left = left if fold else left[-1:]
    while True:
        lanes, *left = left
        if kinds is not None:
            _few_enough(job, lanes)
        graph = build(job, lanes)
        works = [work for work in graph.works if isinstance(work, Communication)]
        found = loads(cluster, job, lanes.atoms, works, lanes.alike)
        if found is None:
            continue  # the last way folds nothing and needs no proof
        of = dict(zip(works, found, strict=True))
        machine = price(graph, cluster, of)
        if sample or exact(machine):
            break
        some = [work for work in works if of[work].apart]
        apart = parting(cluster, job, lanes.atoms, some)
        left = [way for way in left if apart.isdisjoint(way.atoms)]
        if good_enough(lanes, left, graph, machine):
            break
    if host and (host.always or is_late(graph, machine, host)):
        graph = with_host(graph, host.prices)
        machine = price(graph, cluster, of)
    return lanes, graph, machine


def build(job: Job, lanes: Lanes, sends: bool = True) -> Graph:
    """Return the graph of a step on these lanes, without a host."""
    return training_step(job, lanes.simulated, sends, lanes.alike)


def _few_enough(job: Job, lanes: Lanes) -> None:
    """Raise InputError if perturbations keep too many ranks from being folded."""
    one = next(candidates(job)).simulated
    each = len(training_step(job, one)) / len(one)
    ops = round(each * len(lanes.simulated))
    if ops > MOST_UNLIKE:
        raise InputError(
            f"perturbations make {len(lanes.simulated) * job.mesh.pp:,} ranks differ, whose "
            f"{ops:,} ops are more than the {MOST_UNLIKE:,} that can be simulated; perturb fewer "
            "ranks, all alike, or a sample of replicas: noise = { sigma = ..., replicas = 64 }"
        )


def job_of(recipe: Recipe, cluster: Cluster | None = None) -> Job:
    """Return the job that a recipe describes.

    A searched schedule needs the times of the stages on the recipe's cluster, which is loaded
    unless given, and takes the order whose step there is shortest. Raises InputError for an order
    that cannot run under the recipe's p2p.
    """
    job = without_plan(recipe)
    if schedules.takes_times(recipe.schedule.name):
        machine = cluster or clusters.load(recipe.cluster.topology, recipe.cluster.gpus)
        fold = recipe.simulation.fold == "auto"
        plan = searched(recipe, job, machine, lambda of: prepare(of, machine, fold, issuer(recipe)))
    else:
        plan = recipe.plan({})
    if recipe.schedule.name not in NEVER_STOP:
        serial = job.schedule.pair == "serial"
        pair = "serial" if serial else "fused"  # which asks for more than shared
        schedules.require_legal(plan, job.policy.name, pair)
    return replace(job, plan=plan)


NEVER_STOP = ("gpipe", "one_f_one_b", "interleaved_1f1b")
"""The schedules whose orders run under every p2p policy, as tests prove."""
