"""From a job to its graph: programs of ranks, templates of columns, stamps per microbatch.

Strategies compose from the inside out: a stage's programs (layers, tensor, context and expert
parallel, recomputation) → what the data-parallel dimension adds to them → the order of the pipeline
→ the head and the tail of the step around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from sim import strategies
from sim.builder import groups
from sim.builder.alike import Alike
from sim.builder.groups import Lane, lanes
from sim.builder.job import Job
from sim.builder.persistent import persistent as always
from sim.builder.program import Program
from sim.builder.programs import Programs
from sim.builder.stamp import Stamp, assemble
from sim.builder.strategies.exchange import exchange, exchange_phase, nothing
from sim.builder.strategies.given import Makers
from sim.builder.strategies.messages import Steps, columns, messages, torch_order
from sim.builder.strategies.pipeline import Placement, lower
from sim.builder.strategies.variants import Variant, variants
from sim.builder.template import OF_NORM, Placed, Tables, Template, place
from sim.builder.template import exchange as exchange_template
from sim.graph import Communication, Graph, Longs


def training_step(
    job: Job,
    simulated: Iterable[Lane] | None = None,
    sends: bool = True,
    alike: Alike | None = None,
) -> Graph:
    """Return the graph of one step.

    ``simulated`` are the lanes whose ranks get ops, by default all; the other lanes are taken to do
    exactly the same at the same time (see :mod:`sim.runs.fold`). Without ``sends`` stages exchange
    nothing, and messages hold no memory. With ``alike``, one of its classes is simulated each.
    """
    if alike is not None:
        simulated = alike.simulated()
    some = sorted(simulated) if simulated is not None else lanes(job)
    return Build(job, some, sends, alike).graph()


@dataclass
class Build:
    """One graph under construction."""

    job: Job
    lanes: Sequence[Lane]
    sends: bool = True
    alike: Alike | None = None
    tables: Tables = field(default_factory=Tables)

    def __post_init__(self) -> None:
        self.steps = self._steps()
        self.sent = messages(self.steps)
        pair = self.job.policy.name == "pair"
        self.torch = (
            torch_order(self.steps, self.sent) if pair else np.arange(len(self.sent.source))
        )
        self.programs = Programs(self.job, self.steps, self.sends)
        self._groups: dict[tuple[str, Lane, int], tuple[int, ...]] = {}
        self._same: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._known: dict[tuple[str, int], tuple[int, ...]] = {}  # a group of each look
        self._placed: dict[object, Placed] = {}  # by pipeline rank, lanes that run the same, kind
        self._teams: dict[tuple[object, ...], tuple[int, int]] = {}  # first part, number of parts
        self._parts = len(self.sent.source) * len(self.lanes) * self.job.steps

    def _steps(self) -> Steps:
        job = self.job
        steps = columns(job.plan, job.schedule.pair, job.batch)
        for change in strategies.hooks("steps"):
            steps = change(job, steps)
        return steps

    def graph(self) -> Graph:
        """Return the graph of all lanes of all pipeline ranks."""
        job, stamps = self.job, list[Stamp]()
        base, persistent = 0, dict[int, dict[str, float]]()
        for q in range(len(job.plan)):
            for k, lane in enumerate(self.lanes):
                more, base = self._rank(q, k, base)
                stamps += more
                persistent[int(job.ranks[*lane, q])] = dict(always(job, self.programs.on(q), q))
        part_work = np.zeros(self._parts, np.int32)
        messages = self._message_works()
        part_work[: len(messages)] = messages
        stands_for = job.ranks[..., 0].size // len(self.lanes)
        weights = {} if stands_for == 1 else dict.fromkeys(persistent, stands_for)
        if self.alike is not None:
            weights = self.alike.stands_for()
        return assemble(stamps, self.tables, part_work, persistent, weights)

    def _rank(self, q: int, k: int, base: int) -> tuple[list[Stamp], int]:
        """Return the stamps of pipeline rank ``q`` in the k-th lane."""
        job, lane, n = self.job, self.lanes[k], len(self.sent.source)
        line = job.ranks[*lane]
        make = self._makers(q, lane)
        source = self.steps.source[self.steps.begins[q] : self.steps.begins[q + 1]]
        remote = (source >= 0) & (self.steps.rank[source] != q) & self.sends
        kinds = variants(self.steps, q, np.where(remote, 0, -1))

        known: dict[int, Sequence[int]] = {}  # by variant: equal ones are one object

        def outputs(step: int) -> Sequence[int]:
            variant = kinds[step]
            if id(variant) not in known:
                known[id(variant)] = make.step(variant).outputs
            return known[id(variant)]

        moves = nothing(len(kinds))
        if self.sends:
            peers = line.tolist()
            moves = exchange(job.policy, self.steps, self.sent, self.torch, q, peers, outputs)
        out, before = list[Stamp](), list[int]()
        for step in range(job.steps):
            parts = (k * job.steps + step) * n + np.arange(n)
            team = partial(self._team, q, lane, step)
            at = Placement(base, team, parts, int(line[q]), step, before)
            stamps, base = lower(self.steps, q, moves, make, at)
            out += stamps
            before = [int(stamps[-1].base[-1]) + last for last in stamps[-1].template.lasts]
        return out, base

    def _team(self, q: int, lane: Lane, step: int, axis: str, count: int) -> int:
        """Return the first of the parts that the group of a rank on an axis has in a step."""
        key = (OF_NORM.get(axis, axis), self._group(axis, lane, q), step)
        if key not in self._teams:
            self._teams[key] = (self._parts, count)
            self._parts += count
        first, size = self._teams[key]
        assert size == count, f"ranks of {key} issue {size} and {count} collectives"
        return first

    # -- templates --------------------------------------------------------------------------------

    def _makers(self, q: int, lane: Lane) -> Makers:
        """Return the templates for one rank, each made once."""
        templates: dict[object, Template] = {}
        like = groups.twin(self.job, lane)

        def group(axis: str) -> tuple[int, ...]:
            return self._group(axis, lane, q)

        def placed(key: object, program: Callable[[], Program], beside: bool = False) -> Template:
            """Lower a program once for all lanes that run the same."""
            if key not in templates:
                known = self._placed.get((q, like, key))
                if known is None:
                    known = place(program(), group, self.tables, beside)
                    self._placed[q, like, key] = known
                    templates[key] = known.template
                else:
                    templates[key] = known.on(group, self.tables)
            return templates[key]

        def step(variant: Variant) -> Template:
            beside = variant.pair == "beside"
            return placed(variant, lambda: self.programs.step(variant, q, lane), beside)

        def moves(*key: Any) -> Template:
            if key not in templates:
                templates[key] = self._exchange(lane, *key)
            return templates[key]

        return Makers(
            step=step,
            exchange=moves,
            head=lambda n: placed(("head", n), partial(self.programs.head, q, lane, n)),
            tail=lambda n: placed(("tail", n), partial(self.programs.tail, q, lane, n)),
        )

    def _group(self, axis: str, lane: Lane, q: int) -> tuple[int, ...]:
        line = self.job.ranks[*lane]
        match axis:
            case "norm_in" | "norm_out":  # from the pipeline rank before, or to the one after
                ends = (q - 1, q) if axis == "norm_in" else (q, q + 1)
                return (int(line[ends[0]]), int(line[ends[1]]))
            case "twin":
                return tuple(sorted(int(line[other]) for other in self.programs.twins(q)))
            case "embedding":
                return (
                    int(line[self.programs.owner(0)]),
                    int(line[self.programs.owner(self.job.stages - 1)]),
                )
        if (axis, lane, q) not in self._groups:
            self._groups[axis, lane, q] = self._met(groups.group(self.job, axis, lane, q), axis)
        return self._groups[axis, lane, q]

    def _met(self, found: tuple[int, ...], axis: str) -> tuple[int, ...]:
        """Return the group that stands for one: itself, unless only some lanes are alike."""
        if self.alike is None:
            return self._same.setdefault(found, found)
        look = int(self.alike.looks(np.array([found]))[0])
        return self._known.setdefault((axis, look), found)

    def _exchange(
        self, lane: Lane, name: str, stream: str, message: int, waits: int, parts: int
    ) -> Template:
        phase = exchange_phase(name)
        work = self._message_work(lane, message)
        return exchange_template(name, stream, phase, work, waits, parts, self.tables)

    def _message_work(self, lane: Lane, message: int) -> Communication:
        ends = (
            self.steps.rank[self.sent.source[message]],
            self.steps.rank[self.sent.target[message]],
        )
        line = self.job.ranks[*lane]
        return Communication(
            "p2p", self.job.boundary_bytes, (int(line[ends[0]]), int(line[ends[1]])), "pp"
        )

    def _message_works(self) -> Longs:
        """Return the work of every message, lane by lane and step by step."""
        source, target = (self.steps.rank[end] for end in (self.sent.source, self.sent.target))
        pairs, row = np.unique(source * len(self.job.plan) + target, return_inverse=True)
        out = []
        for lane in self.lanes:
            first = [int(np.argmax(row == k)) for k in range(len(pairs))]
            works = [self.tables.works[self._message_work(lane, message)] for message in first]
            of_step = np.array(works, np.int64)[row] if len(row) else row
            out.append(np.tile(of_step, self.job.steps))
        return np.concatenate(out)
