"""From a job to its graph: programs per stage, templates per team, stamps per rank.

Strategies compose from the inside out: a stage's programs (layers, tensor and sequence parallel,
recomputation) → what the data-parallel dimension adds to the first forward and last backward →
the order of the pipeline → the head and the tail of the step around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from sim import groups
from sim.graph import Communication, Graph
from sim.groups import Lane, lanes
from sim.job import Job
from sim.model import BYTES
from sim.program import Collective, Item, Program
from sim.resident import resident as always
from sim.resident import stage_units
from sim.stage import stage_programs
from sim.strategies import data as data_parallel
from sim.strategies.data import Bucket
from sim.strategies.exchange import exchange, exchange_phase
from sim.strategies.gathering import Step, ahead_of_input, shard
from sim.strategies.messages import Longs, columns, messages, torch_order
from sim.strategies.optimizer import Tail, tail, zero_gradients
from sim.strategies.pipeline import Makers, Placement, Variant, lower, variants
from sim.strategies.sequence import replicated_gradient_bytes
from sim.strategies.tensor import replicated_kv_bytes
from sim.strategies.units import Unit
from sim.template import Stamp, Tables, Template, assemble, place
from sim.template import exchange as exchange_template


def training_step(job: Job, simulated: Iterable[Lane] | None = None) -> Graph:
    """The graph of one step.

    ``simulated`` are the lanes whose ranks get ops, all unless given; the others are taken to do
    exactly the same at the same time (see :mod:`sim.fold`).
    """
    return Build(job, sorted(simulated) if simulated is not None else lanes(job)).graph()


@dataclass
class Build:
    """One graph under construction."""

    job: Job
    lanes: Sequence[Lane]
    tables: Tables = field(default_factory=Tables)

    def __post_init__(self) -> None:
        self.steps = columns(self.job.plan, self.job.pair, self.job.batch)
        self.sent = messages(self.steps)
        pair = self.job.policy.name == "pair"
        self.torch = (
            torch_order(self.steps, self.sent) if pair else np.arange(len(self.sent.source))
        )
        self._made: dict[tuple[int, tuple[int, int]], Mapping[str, Program]] = {}
        self._cut: dict[tuple[int, str, int], list[Bucket]] = {}
        self._wrapped: dict[int, Sequence[Unit]] = {}
        self._teams: dict[tuple[object, ...], tuple[int, int]] = {}  # first part, and how many
        self._parts = len(self.sent.source) * len(self.lanes) * self.job.steps

    def _programs(self, stage: int, lane: Lane) -> Mapping[str, Program]:
        """What the rank of a lane runs of a stage; several lanes run the same."""
        job, like = self.job, groups.twin(self.job, lane)
        if (stage, like) not in self._made:
            ends = {"first": stage == 0, "last": stage == job.stages - 1}
            cp, ep = like
            self._made[stage, like] = stage_programs(
                job.model, job.setting, job.layers(stage), **ends, cp_rank=cp, ep_rank=ep
            )
        return self._made[stage, like]

    def _buckets(self, stage: int, q: int, lane: Lane, kind: str = "") -> list[Bucket]:
        """The gradient buckets of a stage on a pipeline rank, as steps of that kind make them.

        Unless given, it is that of the last gradients: B or W.
        """
        if kind not in ("B", "W"):
            mine = slice(int(self.steps.begins[q]), int(self.steps.begins[q + 1]))
            kinds = self.steps.kind[mine][self.steps.stage[mine] == stage]
            kind = str(kinds[np.isin(kinds, ["B", "W"])][-1])
        made = self._programs(stage, lane)[kind]
        key = (stage, kind, id(made))
        if key not in self._cut:
            self._cut[key] = data_parallel.buckets(made, self.job.held(stage), self.job.data)
        return self._cut[key]

    def _units(self, stage: int) -> Sequence[Unit]:
        """What sharded data parallelism gathers of a stage at a time."""
        if stage not in self._wrapped:
            self._wrapped[stage] = stage_units(self.job, stage)
        return self._wrapped[stage]

    def graph(self) -> Graph:
        """All lanes of all pipeline ranks."""
        job, stamps = self.job, list[Stamp]()
        base, resident = 0, dict[int, dict[str, float]]()
        for q in range(len(job.plan)):
            for k, lane in enumerate(self.lanes):
                more, base = self._rank(q, k, base)
                stamps += more
                resident[int(job.ranks[*lane, q])] = dict(always(job, self._on(q), q))
        part_work = np.zeros(self._parts, np.int32)
        messages = self._message_works()
        part_work[: len(messages)] = messages
        stands_for = job.ranks[..., 0].size // len(self.lanes)
        weights = {} if stands_for == 1 else dict.fromkeys(resident, stands_for)
        return assemble(stamps, self.tables, part_work, resident, weights)

    def _rank(self, q: int, k: int, base: int) -> tuple[list[Stamp], int]:
        """Stamps of pipeline rank ``q`` in the k-th lane."""
        job, lane, n = self.job, self.lanes[k], len(self.sent.source)
        line = job.ranks[*lane]
        make = self._makers(q, lane)
        source = self.steps.source[self.steps.begins[q] : self.steps.begins[q + 1]]
        remote = (source >= 0) & (self.steps.rank[source] != q)
        kinds = variants(self.steps, q, np.where(remote, 0, -1))

        def outputs(step: int) -> Sequence[int]:
            return make.step(kinds[step]).outputs

        moves = exchange(job.policy, self.steps, self.sent, self.torch, q, line.tolist(), outputs)
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
        """The first of the parts that the group of a rank on an axis has in a step."""
        key = (axis, self._group(axis, lane, q), step)
        if key not in self._teams:
            self._teams[key] = (self._parts, count)
            self._parts += count
        first, size = self._teams[key]
        assert size == count, f"ranks of {key} issue {size} and {count} collectives"
        return first

    # -- templates --------------------------------------------------------------------------------

    def _makers(self, q: int, lane: Lane) -> Makers:
        """Templates for one rank, each made once."""
        templates: dict[object, Template] = {}

        def remember(key: object, make: Callable[[], Template]) -> Template:
            if key not in templates:
                templates[key] = make()
            return templates[key]

        def group(axis: str) -> tuple[int, ...]:
            return self._group(axis, lane, q)

        def step(variant: Variant) -> Template:
            beside = variant.pair == "beside"
            return remember(
                variant,
                lambda: place(self._program(variant, q, lane), group, self.tables, beside),
            )

        def head(inputs: int) -> Template:
            return remember(
                ("head", inputs), lambda: place(self._head(q, lane, inputs), group, self.tables)
            )

        def tail(inputs: int) -> Template:
            return remember(
                ("tail", inputs), lambda: place(self._tail(q, lane, inputs), group, self.tables)
            )

        return Makers(
            step=step,
            exchange=lambda *key: remember(key, lambda: self._exchange(lane, *key)),
            head=head,
            tail=tail,
        )

    def _group(self, axis: str, lane: Lane, q: int) -> tuple[int, ...]:
        line = self.job.ranks[*lane]
        match axis:
            case "twin":
                return tuple(sorted(int(line[other]) for other in self._twins(q)))
            case "embedding":
                return (int(line[self._owner(0)]), int(line[self._owner(self.job.stages - 1)]))
        return groups.group(self.job, axis, lane, q)

    def _twins(self, q: int) -> list[int]:
        """The pipeline ranks that hold the same stages: one, or two in a pipeline of two ways."""
        return [other for other in range(len(self.job.plan)) if self._on(other) == self._on(q)]

    def _owner(self, stage: int) -> int:
        return int(self.steps.rank[np.argmax(self.steps.stage == stage)])

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
        """The work of every message, lane by lane and step by step."""
        source, target = (self.steps.rank[end] for end in (self.sent.source, self.sent.target))
        pairs, row = np.unique(source * len(self.job.plan) + target, return_inverse=True)
        out = []
        for lane in self.lanes:
            first = [int(np.argmax(row == k)) for k in range(len(pairs))]
            works = [self.tables.works(self._message_work(lane, message)) for message in first]
            of_step = np.array(works, np.int64)[row] if len(row) else row
            out.append(np.tile(of_step, self.job.steps))
        return np.concatenate(out)

    # -- programs ---------------------------------------------------------------------------------

    def _program(self, variant: Variant, q: int, lane: Lane) -> Program:
        items = self._programs(variant.stage, lane)[variant.kind]
        data, parts = self.job.data, self._buckets(variant.stage, q, lane)
        if data.split:
            parts = self._buckets(variant.stage, q, lane, variant.kind)
            step = Step(variant.kind, variant.place, piped=self.job.overlapping)
            items = shard(items, step, self._units(variant.stage), data, parts)
        elif variant.place == "last" and data.overlap_grad_reduce:
            items = data_parallel.reduce_gradients(items, parts, data)
        if variant.place == "first" and self._gathers_ahead:
            items = data_parallel.wait_for_parameters(items, parts)
        scattered = self.job.scatter_gather and self.job.setting.tp > 1
        if scattered and variant.inputs and variant.kind != "W" and self._remote(variant):
            items = self._gathered_input(items, variant)
        return _given(items, variant, self._head_row(variant.stage, q, lane))

    def _remote(self, variant: Variant) -> bool:
        """Whether the input of such steps comes from another rank."""
        steps = self.steps
        mine = (steps.stage == variant.stage) & (steps.kind == variant.kind)
        source = steps.source[np.argmax(mine)]
        return bool(source >= 0 and steps.rank[source] != steps.rank[np.argmax(mine)])

    def _gathered_input(self, items: Program, variant: Variant) -> Program:
        """Scatter-gather: what arrives is a share, gathered over tp inside the node first."""
        whole = self.job.boundary_bytes * self.job.setting.tp
        phase = "F" if variant.kind == "F" else "I"
        gather = Collective("input_all_gather", "tp", "all_gather", whole, phase, needs=(-1,))
        moved = [
            item._replace(needs=tuple(n + 1 if n >= 0 else n for n in item.needs)) for item in items
        ]
        moved[0] = moved[0]._replace(needs=(*moved[0].needs, 0))
        return [gather, *moved]

    @property
    def _gathers_ahead(self) -> bool:
        data = self.job.data
        return data.gathers_updated and data.overlap_param_gather

    def _on(self, q: int) -> list[int]:
        """The stages of a pipeline rank, ascending."""
        mine = slice(int(self.steps.begins[q]), int(self.steps.begins[q + 1]))
        return sorted({int(s) for s in self.steps.stage[mine]})

    def _head(self, q: int, lane: Lane, inputs: int) -> Program:
        """What a step begins with: gathers of parameters beside zeroed gradients."""
        items: list[Item] = []
        for s in self._on(q) if self._gathers_ahead else ():
            items += data_parallel.gathers(self._buckets(s, q, lane), self.job.data)
        held = sum(self.job.held(s).total for s in self._on(q))
        items.append(zero_gradients(held, self.job.data))
        before = tuple(-1 - k for k in range(inputs))
        return [item._replace(needs=before) for item in items]

    def _head_row(self, stage: int, q: int, lane: Lane) -> int:
        """Where the gathers of a stage begin in its rank's head."""
        return sum(len(self._buckets(s, q, lane)) for s in self._on(q) if s < stage)

    def _tail(self, q: int, lane: Lane, inputs: int) -> Program:
        job, mine = self.job, self._on(q)
        held = [self.job.held(s) for s in mine]
        grad = BYTES[job.data.grad_dtype]
        tp, s = job.setting.tp, job.setting
        partial = sum(
            replicated_gradient_bytes(job.model, s, job.layers(k), k == 0, k == job.stages - 1)
            for k in mine
        )
        kv = sum(len(job.layers(k)) for k in mine) * replicated_kv_bytes(job.model, s)
        ends = {self._owner(0), self._owner(job.stages - 1)}
        tied = job.model.tied and len(ends) > 1 and q in ends
        embedding = max(h.embedding or h.head for h in held) * grad if tied else 0
        total, split = sum(h.total for h in held), job.data.gradient_split
        flushed = job.batch is None
        what = Tail(
            parameters=total,
            experts=sum(h.expert for h in held),
            partial=partial / split,
            kv=kv / split,
            embedding=embedding / split,
            twin=job.data.share(total, sum(h.expert for h in held)) * grad
            if len(self._twins(q)) > 1
            else 0,
            loss_scale=s.dtype == "fp16",
            norm_ranks=tp * job.mesh.pp * job.data.optimizer_split * flushed,
            stashed=bool(job.stale) and job.batch == 1 and job.stale[q] > 0,
        )
        items = tail(what, [self._buckets(k, q, lane) for k in mine], job.data, inputs)
        if flushed:
            return items
        zeroed = zero_gradients(total, job.data)  # the next step is under way behind it
        return [*items, zeroed._replace(needs=(len(items) - 1,))]


def _given(items: Program, variant: Variant, head_row: int) -> Program:
    """Number the slots: the stage's inputs, the kernels before it, then the ops of the head.

    The input is waited for by the first kernel, and by a collective before it. Such a collective
    also waits for the kernel before it on its rank, behind which it is issued; so do all of them
    where kernels run on two streams.
    """
    inputs, ahead = variant.inputs, variant.inputs + variant.before

    def slot(need: int) -> int:
        return need if need >= -1 else -1 - (ahead + head_row + (-2 - need))

    out = [item._replace(needs=tuple(slot(n) for n in item.needs)) for item in items]
    given = tuple(-1 - k for k in range(inputs))
    previous = tuple(-1 - k for k in range(inputs, ahead))
    apart = variant.pair == "beside" or variant.before > 1
    for i, item in enumerate(out):
        leads = isinstance(item, Collective)
        missing = tuple(n for n in given if n not in item.needs)
        if ahead_of_input(item):
            leads, missing = True, ()
        if (leads and not item.needs) or not leads:
            before = previous if leads or apart else ()
            out[i] = item._replace(needs=(*item.needs, *missing, *before))
        if not leads:
            break
    return out
