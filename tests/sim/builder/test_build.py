"""Building a step: stamped columns against ops placed one at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
import pytest

from sim.builder.job import Job
from sim.builder.program import Collective, Item
from sim.builder.slots import Slot
from sim.builder.stage import stage_programs
from sim.builder.strategies import data as dp
from sim.builder.strategies.optimizer import Tail, tail, zero_gradients
from sim.builder.training_step import training_step
from sim.engine import simulate
from sim.graph import Builder, Communication, Graph
from sim.machine import cluster as clusters
from sim.machine.cluster import Cluster
from sim.machine.price import price
from sim.model.sizes import parameters
from sim.runs.fold import loads
from sim.timeline import Timeline

Make = Callable[..., Job]


class Naive:
    """The same step with one call of ``Builder.add`` per op, for p2p by direction and no ZeRO."""

    def __init__(self, job: Job) -> None:
        self.job, self.b = job, Builder()
        self.members: dict[tuple[object, ...], list[int]] = defaultdict(list)
        self.owner = {step.stage: q for q, steps in enumerate(job.plan) for step in steps}
        self.work: dict[tuple[object, ...], Communication] = {}

    def graph(self) -> Graph:
        ranks = self.job.ranks
        for q in range(len(self.job.plan)):
            for i, j in np.ndindex(ranks.shape[0], ranks.shape[2]):
                self.rank(q, i, j)
        for key, members in self.members.items():
            self.b.join(members, self.work[key])
        return self.b.graph()

    def rank(self, q: int, i: int, j: int) -> None:
        """All ops of one rank, in an order that its streams can run."""
        self.at, self.me = (q, i, j), int(self.job.ranks[i, 0, j, q])
        self.count: Counter[object] = Counter()
        self.ready: dict[tuple[int, str, int], list[int]] = {}
        self.receive_all()
        model, tp = self.job.model, self.job.parallelism.tp
        held = {
            s: parameters(model, tp, self.job.layers(s), s == 0, s == self.last)
            for s in sorted({step.stage for step in self.job.plan[q]})
        }
        programs = {s: self.programs(s) for s in held}
        buckets = {s: dp.buckets(programs[s]["B"], held[s], self.job.data) for s in held}
        self.kernel = self.place(
            [zero_gradients(sum(h.total for h in held.values()), self.job.data)]
        )[0]
        ends: list[int] = []
        left = Counter(step.stage for step in self.job.plan[q] if step.kind == "B")
        for step in self.job.plan[q]:
            items = programs[step.stage][step.kind]
            left[step.stage] -= step.kind == "B"
            final = step.kind == "B" and not left[step.stage]
            if final and self.job.data.degree > 1:
                items = dp.reduce_gradients(items, buckets[step.stage], self.job.data)
            source = step.stage + (-1 if step.kind == "F" else 1)
            inputs = self.ready.pop((source, step.kind, step.microbatch), [])
            placed = self.place(items, inputs, step.microbatch)
            out = self.outputs(items, placed)
            self.ready[tuple(step)] = out
            self.send(step, out)
            ends += placed if final else []
        self.place(self.tail(held), ends)

    @property
    def last(self) -> int:
        return self.job.stages - 1

    def programs(self, s: int) -> dict[str, list[Item]]:
        return stage_programs(self.job, self.job.layers(s), s == 0, s == self.last)

    def place(self, items: list[Item], inputs: list[int] = [], microbatch: int = -1) -> list[int]:  # noqa: B006
        """One op per item; what leads waits for the inputs, a collective there too."""
        placed: list[int] = []
        leading = True
        for item in items:
            waits = [placed[n] for n in item.needs if isinstance(n, int)]
            collective = isinstance(item, Collective)
            if any(isinstance(n, Slot) for n in item.needs) or (leading and microbatch >= 0):
                waits += inputs
                if collective and microbatch >= 0:
                    waits.append(self.kernel)
            if not collective:
                leading = False
                op = self.b.add(
                    item.name, self.me, "compute", item.work, waits, microbatch=microbatch
                )
                self.kernel = op
            else:
                op = self.collective(item, waits, microbatch)
            placed.append(op)
        return placed

    def collective(self, item: Collective, waits: list[int], microbatch: int) -> int:
        q, i, j = self.at
        ranks, first, last = self.job.ranks, self.owner[0], self.owner[self.last]
        group = {
            "tp": ranks[:, 0, j, q],
            "dp": ranks[i, 0, :, q],
            "model": np.sort(ranks[:, 0, j].ravel()),
            "embedding": ranks[i, 0, j, [first, last]],
        }[item.axis]
        ranks_of = tuple(group.tolist())
        work = Communication(item.collective, item.bytes, ranks_of, item.axis, item.algorithm)
        op = self.b.add(
            item.name, self.me, item.stream or item.axis, work, waits, microbatch=microbatch
        )
        self.count[item.axis, work.ranks] += 1
        key = (item.axis, work.ranks, self.count[item.axis, work.ranks])
        self.members[key].append(op)
        self.work[key] = work
        return op

    def outputs(self, items: list[Item], placed: list[int]) -> list[int]:
        """The last kernel, and the last tp collective where nothing waits for it."""
        needed = {n for item in items for n in item.needs}
        last = {getattr(item, "axis", "compute"): k for k, item in enumerate(items)}
        last.pop("dp", None)
        return [placed[k] for s, k in last.items() if s == "compute" or k not in needed]

    def message(self, step: tuple[int, str, int], to: int, name: str, waits: list[int]) -> int:
        """One end of the message that ``step`` sends to the rank of stage ``to``."""
        _, i, j = self.at
        line = self.job.ranks[i, 0, j]
        ends = (int(line[self.owner[step[0]]]), int(line[self.owner[to]]))
        work = Communication("p2p", self.job.boundary_bytes, ends, "pp")
        stream = f"send to {ends[1]}" if ends[0] == self.me else f"receive from {ends[0]}"
        op = self.b.add(name, self.me, stream, work, waits, microbatch=step[2])
        self.members["pp", *step, i, j].append(op)
        self.work["pp", *step, i, j] = work
        return op

    def send(self, step: tuple[int, str, int], out: list[int]) -> None:
        to = step[0] + (1 if step[1] == "F" else -1)
        if 0 <= to <= self.last and self.owner[to] != self.at[0]:
            self.message(step, to, "send", out)

    def receive_all(self) -> None:
        """Receives wait for nothing and lie on streams of their own, in their sender's order."""
        for q, steps in enumerate(self.job.plan):
            for step in steps:
                to = step.stage + (1 if step.kind == "F" else -1)
                if q != self.at[0] and self.owner.get(to) == self.at[0]:
                    self.ready[tuple(step)] = [self.message(step, to, "receive", [])]

    def tail(self, held: dict[int, object]) -> list[Item]:
        job, t = self.job, self.job.parallelism.tp
        size = sum(h.norm + h.row_bias for h in held.values()) * 4 * (job.parallelism.sp and t > 1)
        apart = job.model.tied and self.owner[0] != self.owner[self.last]
        ends = apart and (0 in held or self.last in held)
        rows = max(h.embedding or h.head for h in held.values()) * 4 * ends
        whole = sum(h.total for h in held.values())
        what = Tail(
            whole, in_part=[("partial", "tp", size)], embedding=rows, norm_ranks=t * job.mesh.pp
        )
        return tail(what, [], job.data, 1)


def timeline(graph: Graph, job: Job, cluster: Cluster) -> Timeline:
    works = [work for work in graph.works if isinstance(work, Communication)]
    prices = dict(zip(works, loads(cluster, job, (), works), strict=True))
    return simulate(graph, price(graph, cluster, prices))


def streams(done: Timeline) -> dict[tuple[int, str], np.ndarray]:
    """Starts and ends per rank and stream; p2p streams under names that both builders share."""
    words = {"pp send →": "send to ", "pp recv ←": "receive from "}
    out = {}
    for rank, stream, ops in done.graph.by_stream():
        for ours, theirs in words.items():
            stream = stream.replace(ours, theirs)
        out[rank, stream] = np.array([done.start[ops], done.end[ops]])
    return out


CASES = [
    {"tp": 2, "pp": 2, "dp": 2, "grad_dtype": "fp32"},
    {"tp": 2, "pp": 2, "dp": 2, "sp": True, "tied": False},
    {"tp": 4, "pp": 2, "sp": True, "recompute": "full", "schedule": "gpipe"},
    {"tp": 1, "pp": 4, "dp": 2, "chunks": 2, "microbatches": 8},
    {"tp": 2, "pp": 4, "sp": True, "tp_overlap": True, "layers_per_stage": (1, 3, 3, 1)},
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_stamping_is_placing_ops_one_at_a_time(small_job: Make, case: dict[str, object]) -> None:
    """Same ops per stream, same waits and groups: the same timeline, sharing of the network on."""
    job, cluster = small_job(**case), clusters.load("dgx_a100", 8)
    naive, ours = Naive(job).graph(), training_step(job)
    assert len(naive) == len(ours)
    one, other = (streams(timeline(graph, job, cluster)) for graph in (naive, ours))
    assert one.keys() == other.keys()
    for key, times in one.items():
        np.testing.assert_allclose(other[key], times, rtol=1e-9, err_msg=str(key))
