"""How long does one layer of a recipe take alone: forward, backward, its two halves, each kernel?

Papers publish such layer and stage times beside step times; they say which kernels an error of the
step comes from, without pipeline, data parallelism or optimizer around them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from schedules import Plan, load
from sim import cluster as clusters
from sim.cluster import Cluster
from sim.engine import simulate
from sim.fold import loads
from sim.graph import Builder, Communication, Graph
from sim.job import Job
from sim.mesh import Mesh
from sim.price import price
from sim.program import Collective, Program
from sim.recipe import Recipe
from sim.runs import job_of
from sim.stage import stage_programs
from sim.timeline import Timeline


def layer_timelines(recipe: Recipe, layers: int = 1) -> Mapping[str, Timeline]:
    """F, B, I and W of ``layers`` layers of a recipe's model, each by itself on one rank.

    Tensor-parallel peers do the same at the same time. B is the whole backward, with what it
    recomputes; I and W are its halves, as zero-bubble schedules run them.
    """
    job = _alone(job_of(recipe))
    machine = clusters.load(recipe.cluster.topology, job.mesh.tp)
    programs = stage_programs(job.model, job.setting, range(layers), first=False, last=False)
    return {name: _run(items, job, machine) for name, items in programs.items()}


def _alone(job: Job) -> Job:
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
            work = Communication(item.collective, item.bytes, ranks, item.axis)
            stream = item.stream or item.axis
            op = builder.add(item.name, 0, stream, work, waits, phase=item.phase)
            builder.join([op])
        else:
            builder.add(item.name, 0, "compute", item.work, waits, phase=item.phase)
    return builder.graph()
