"""How long does one microbatch of a stage take by itself: forward, backward, and its two halves?

Searched schedules need these times before there is a step to simulate; papers publish them beside
step times, where they say which kernels an error of the step comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from schedules import Plan, load
from schedules._times import Seconds
from sim.cluster import Cluster
from sim.collectives import alone, traffic
from sim.engine import simulate
from sim.fold import loads
from sim.graph import Builder, Communication, Graph
from sim.job import Job
from sim.mesh import Mesh
from sim.price import price
from sim.program import Collective, Program
from sim.stage import stage_programs
from sim.timeline import Timeline


def stage_timelines(
    job: Job, cluster: Cluster, layers: Sequence[int], first: bool = False, last: bool = False
) -> Mapping[str, Timeline]:
    """F, B, I and W of a stage with these layers, each by itself on one rank.

    Tensor-parallel peers do the same at the same time. B is the whole backward, with what it
    recomputes; I and W are its halves, as zero-bubble schedules run them.
    """
    single = _single(job)
    programs = stage_programs(job.model, job.setting, layers, first, last)
    return {kind: _run(items, single, cluster) for kind, items in programs.items()}


def stage_seconds(job: Job, cluster: Cluster) -> Mapping[str, Seconds]:
    """F, I, W and p2p in seconds: one number for all stages if they are alike, else one for each.

    The first stage has the embedding and the last one the head; stages with the same layers and
    ends are simulated once.
    """
    kinds = [
        (tuple(map(job.model.routed, job.layers(s))), s == 0, s == job.stages - 1)
        for s in range(job.stages)
    ]
    first = {kind: kinds.index(kind) for kind in dict.fromkeys(kinds)}
    known = {kind: _of_stage(job, cluster, s) for kind, s in first.items()}
    seconds: dict[str, Seconds] = {**known[kinds[0]]}
    if len(known) > 1:
        seconds = {phase: [known[kind][phase] for kind in kinds] for phase in "FIW"}
    return {**seconds, "p2p": _hop(job, cluster)}


def _of_stage(job: Job, cluster: Cluster, s: int) -> dict[str, float]:
    ran = stage_timelines(job, cluster, job.layers(s), s == 0, s == job.stages - 1)
    return {kind: ran[kind].seconds for kind in "FIW"}


def _hop(job: Job, cluster: Cluster) -> float:
    """Seconds of a message between the first two ranks of the pipeline."""
    line = job.ranks[0, 0]
    if len(line) == 1:
        return 0.0
    ends = (int(line[0]), int(line[1]))
    return alone(cluster, traffic(cluster, Communication("p2p", job.boundary_bytes, ends, "pp")))


def _single(job: Job) -> Job:
    """The same job without pipeline and replicas: its tensor-parallel group."""
    plan: Plan = load("one_f_one_b")(1, 1)
    mesh = Mesh(tp=job.mesh.tp, dp=1, pp=1, order=job.mesh.order)
    return replace(job, mesh=mesh, plan=plan, data=replace(job.data, degree=1))


def _run(program: Program, job: Job, cluster: Cluster) -> Timeline:
    graph = _graph(program, tuple(range(job.mesh.tp)))
    works = [work for work in graph.works if isinstance(work, Communication)]
    found = loads(cluster, job, ("tp",) if job.mesh.tp > 1 else (), works)
    if found is None:
        raise ValueError("the ranks of the tensor-parallel group are not alike; use a uniform node")
    return simulate(graph, price(graph, cluster, dict(zip(works, found, strict=True))))


def _graph(program: Program, ranks: tuple[int, ...]) -> Graph:
    """A program on rank 0, which stands for all; its inputs are there from the start."""
    builder = Builder()
    for item in program:
        waits = [need for need in item.needs if need >= 0]
        if isinstance(item, Collective):
            work = Communication(item.collective, item.bytes, ranks, item.axis, item.algorithm)
            stream = item.stream or item.axis
            builder.join([builder.add(item.name, 0, stream, work, waits, phase=item.phase)])
        else:
            builder.add(item.name, 0, "compute", item.work, waits, phase=item.phase)
    return builder.graph()
