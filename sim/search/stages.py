"""What a microbatch takes of a stage at least: seconds of its kernels, bytes that it keeps.

The seconds of a step are those from the start of its first kernel to the end of its last, on its
own: kernels at boost clock, collectives on an empty network. On a rank the kernels of its steps
follow each other on one stream, so these seconds add up. Layers of one kind take the same, so
programs of one and of two layers tell what each of many takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import fsum, inf
from typing import NamedTuple, TypeVar

from sim.builder.groups import Lane, group
from sim.builder.job import Job
from sim.builder.program import WEIGHT_GRADIENT, Collective, Item, Program, computes
from sim.builder.stage import stage_programs
from sim.runs.kept import Kept
from sim.search.prices import Prices

Kinds = Mapping[str, float]
Found = TypeVar("Found")


class Cost(NamedTuple):
    """What a microbatch takes of a stage, by kind of step: F, B, I or W."""

    seconds: Kinds  # from the start of the first kernel to the end of the last
    busy: Kinds  # seconds of kernels that two streams cannot share better than one after the other
    kept: float  # bytes from the end of the forward to the backward
    most: Kinds  # bytes, at some moment of the step, beyond those before it

    def plus(self, other: Cost, times: int = 1) -> Cost:
        """Return the cost with another one added so many times; ``most`` stays the larger one."""
        return Cost(
            {kind: self.seconds[kind] + times * other.seconds[kind] for kind in self.seconds},
            {kind: self.busy[kind] + times * other.busy[kind] for kind in self.busy},
            self.kept + times * other.kept,
            self.most,
        )


Layers = tuple[int, ...]


class Look(NamedTuple):
    """What a stage looks like: stages of one look cost the same and hold the same."""

    layers: Layers  # each by the first one of its kind
    first: bool
    last: bool


Known = dict[Look, Cost]
_known, _alike = Kept[Known](512), Kept[Layers](8)


def looks(job: Job) -> list[Look]:
    """Return the look of each stage of a job."""
    model, last, out, begin = job.model, job.stages - 1, list[Look](), 0
    kinds = _alike.of(model, lambda: tuple(map(model.like, range(model.layers))))
    for stage, layers in enumerate(job.layers_per_stage):
        out.append(Look(kinds[begin : begin + layers], stage == 0, stage == last))
        begin += layers
    return out


def alike(of: Sequence[Hashable], find: Callable[[int], Found]) -> list[Found]:
    """Return what is found for each position, once for equal ones.

    >>> alike("abab", lambda k: k)
    [0, 1, 0, 1]
    """
    first: dict[Hashable, Found] = {}
    for k, look in enumerate(of):
        if look not in first:
            first[look] = find(k)
    return [first[look] for look in of]


def costs(job: Job, of: Prices, each: Sequence[Look]) -> list[Cost]:
    """Return what a microbatch takes of each stage of a job, which needs no plan."""
    p, plain = job.parallelism, _plain(job)
    even = isinstance(dict(job.training).get("recompute"), str)  # a word: alike in all layers
    found = _Programs(plain, of, job, _known.of((of.cluster, plain, p.pp, p.order), dict))
    seen = {look: (found.linear if even else found.cost)(*look) for look in dict.fromkeys(each)}
    return [seen[look] for look in each]


def _plain(job: Job) -> Job:
    """Return the job of its stages, equal for those that differ in shards or schedule alone."""
    job = job.of_stage()
    own = {"zero": 0, "fsdp": None, "accumulate": None}
    p = job.parallelism.model_copy(update=own)
    return Job(job.model, p, job.training, job.schedule, plan=())  # type: ignore[arg-type]


class _Programs(NamedTuple):
    """The programs of the stages of a job: their costs, each found once."""

    plain: Job
    of: Prices
    job: Job
    known: Known

    def linear(self, layers: Layers, first: bool, last: bool) -> Cost:
        """Return the cost of a stage from programs of one and of two layers of each kind."""
        some = tuple(dict.fromkeys(layers))
        out = self.cost(some, first, last)
        for kind in some:
            one, two = (self.cost((kind,) * n, False, False) for n in (1, 2))
            out = out.plus(two.plus(one, -1), layers.count(kind) - 1)
        return out

    def cost(self, layers: Layers, first: bool, last: bool) -> Cost:
        """Return the cost of a stage from its program."""
        key = Look(layers, first, last)
        if key not in self.known:
            self.known[key] = self._found(stage_programs(self.plain, layers, first, last))
        return self.known[key]

    def _found(self, programs: Mapping[str, Program]) -> Cost:
        return Cost(
            {kind: span(of, [*map(self._seconds, of)]) for kind, of in programs.items()},
            {kind: _busy(of, self.of) for kind, of in programs.items()},
            fsum(memory.bytes for item in programs["F"] for memory in item.memory),
            {kind: _most(of) for kind, of in programs.items()},
        )

    def _seconds(self, item: Item) -> float:
        if not isinstance(item, Collective):
            return self.of.kernel(item.work)[0]
        ranks = group(self.job, item.axis, Lane(0, 0, 0), 0)
        return self.of.collective(item.collective, item.bytes, ranks, item.algorithm)


def span(program: Program, seconds: Sequence[float]) -> float:
    """Return the seconds from the start of a program's first kernel to the end of its last.

    Counted is what follows from the first kernel: on its stream, or by what items wait for. What
    may have begun before it counts nothing.
    """
    free: dict[str, float] = defaultdict(lambda: -inf)
    ends, last = list[float](), 0.0
    for item, own in zip(program, seconds, strict=True):
        mine = computes(item)
        stream = item.stream or (item.axis if isinstance(item, Collective) else "")
        start = max((ends[k] for k in item.needs if isinstance(k, int)), default=-inf)
        start = max(start, free[stream], 0.0 if mine and free[stream] == -inf else -inf)
        free[stream] = start + own
        ends.append(start + own)
        last = start + own if mine else last
    return last


def _busy(program: Program, of: Prices) -> float:
    return fsum(of.kernel(item.work)[1] for item in program
                if not isinstance(item, Collective) and computes(item))  # fmt: skip


def _most(program: Program) -> float:
    """Return the most bytes that a program holds beyond those before it.

    Weight gradients on their way are left out: where replicas split gradients there are none.
    """
    now = most = 0.0
    for item in program:
        mine = [memory for memory in item.memory if memory.category != WEIGHT_GRADIENT]
        now += fsum(memory.bytes for memory in mine if memory.at == "start")
        most = max(most, now)
        now += fsum(memory.bytes for memory in mine if memory.at != "start")
    return most
