"""The time that one microbatch of a stage takes by itself: forward, backward, and its two halves.

Searched schedules need these times before there is a step to simulate. Papers publish them beside
step times; there they show which kernels an error of the step comes from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from schedules import Plan, load, options
from schedules.input_error import InputError
from schedules.times import Seconds
from sim import strategies
from sim.builder.groups import Lane, group
from sim.builder.job import Job
from sim.builder.program import Collective, Program
from sim.builder.stage import stage_programs
from sim.engine import simulate
from sim.graph import Builder, Communication, Graph
from sim.machine.cluster import Cluster
from sim.machine.collectives import alone, traffic
from sim.machine.price import price
from sim.runs.fold import loads
from sim.runs.kept import Kept, alike
from sim.timeline import Timeline

BUCKETS = {"bucket_mb": 1.0, "first_bucket_mb": None}
"""In place of the sizes of buckets, which do not matter to a stage."""
_known = Kept[Mapping[str, Seconds]](64)


def stage_timelines(
    job: Job,
    cluster: Cluster,
    layers: Sequence[int],
    first: bool = False,
    last: bool = False,
    kinds: str = "FBIW",
) -> Mapping[str, Timeline]:
    """Return the timelines of F, B, I and W of a stage with these layers, each run by itself.

    One rank is simulated, since tensor-parallel peers do the same at the same time. Groups that
    share a sequence or experts, whose ranks may differ, are simulated whole. B is the whole
    backward, recomputation included; I and W are its halves, as zero-bubble schedules run them.
    Only ``kinds`` are run. Copies of offloaded activations run beside all of it, and are left out.
    Raises InputError if the ranks of a tensor-parallel group are not alike.
    """
    for change in strategies.hooks("alone"):
        job = change(job)
    if job.mesh.cp * job.mesh.ep * job.mesh.etp > 1:
        return _shared(job, cluster, layers, first, last, kinds)
    single = _alone(job, 1)  # its tensor-parallel group
    programs = stage_programs(single, layers, first, last)
    return {kind: _run(programs[kind], single, cluster) for kind in kinds}


def stage_seconds(job: Job, cluster: Cluster) -> Mapping[str, Seconds]:
    """Return F, I, W and p2p in seconds: one number if all stages are alike, else one for each.

    The first stage has the embedding and the last one the head. Stages with the same layers and the
    same of these ends are simulated once, and jobs that differ in plan and buckets alone, too. p2p
    is that of a message between neighbouring stages, one for each boundary if they are not alike.
    """
    return {**_known_seconds(job, cluster), "p2p": _hops(job, cluster)}


def _known_seconds(job: Job, cluster: Cluster) -> Mapping[str, Seconds]:
    if job.parallelism.strategy:  # a file that may change
        return _seconds(job, cluster)
    whole = replace(
        job,
        parallelism=job.parallelism.model_copy(update=BUCKETS),
        training=job.training.model_copy(update={"global_batch": 1}),
        schedule=job.schedule.model_copy(update={"name": "one_f_one_b"}),
    )
    return _known.of((cluster, alike(whole, "plan")), lambda: _seconds(job, cluster))


def _seconds(job: Job, cluster: Cluster) -> Mapping[str, Seconds]:
    kinds = [
        (tuple(map(job.model.like, job.layers(s))), s == 0, s == job.stages - 1)
        for s in range(job.stages)
    ]
    first = {kind: kinds.index(kind) for kind in dict.fromkeys(kinds)}
    known = {kind: _of_stage(job, cluster, s) for kind, s in first.items()}
    seconds: dict[str, Seconds] = {**known[kinds[0]]}
    if len(known) > 1:
        seconds = {phase: [known[kind][phase] for kind in kinds] for phase in "FIW"}
    return seconds


def _of_stage(job: Job, cluster: Cluster, s: int) -> dict[str, float]:
    ran = stage_timelines(job, cluster, job.layers(s), s == 0, s == job.stages - 1, "FIW")
    return {kind: ran[kind].seconds for kind in "FIW"}


def _hops(job: Job, cluster: Cluster) -> Seconds:
    """Return the seconds of a message across each boundary between stages, the slower way.

    That is on an empty network, between ranks of the first replica; 0 where one rank has both.
    """
    line = [int(rank) for rank in job.ranks[0, 0, 0]]
    at = [line[q] for q in _places(job)]
    ways = {(a, b): _hop(job, cluster, a, b) for a, b in {*pairwise(at), *pairwise(at[::-1])}}
    hops = [max(ways[a, b], ways[b, a]) for a, b in pairwise(at)]
    return hops if len({*hops}) > 1 else max(hops, default=0.0)


def _places(job: Job) -> list[int]:
    """Return the pipeline rank of each stage: round and round, or in a V where a rank has two."""
    down = range(job.mesh.pp)
    if job.stages == 2 * len(down) and "chunks" not in options(job.schedule.name):
        return [*down, *reversed(down)]
    return [s % len(down) for s in range(job.stages)]


def _hop(job: Job, cluster: Cluster, source: int, target: int) -> float:
    if source == target:
        return 0.0
    message = Communication("p2p", job.boundary_bytes, (source, target), "pp")
    return alone(cluster, traffic(cluster, message))


def _alone(job: Job, dp: int) -> Job:
    """Return the same job without pipeline, on ``dp`` replicas, over which it shares nothing."""
    plan: Plan = load("one_f_one_b")(1, 1)
    alone = job.parallelism.model_copy(update={"dp": dp, "pp": 1, "zero": 0})
    return replace(job, parallelism=alone, plan=plan)


def _shared(
    job: Job, cluster: Cluster, layers: Sequence[int], first: bool, last: bool, kinds: str
) -> Mapping[str, Timeline]:
    """Return the timelines of a stage on all ranks of replicas that share sequence or experts."""
    p = job.parallelism
    job = _alone(job, math.lcm(p.ep * p.etp, p.tp * p.cp) // (p.tp * p.cp))
    mesh = job.mesh
    places = [
        (mesh.coordinates(rank)["cp"], mesh.group_of(rank, "ep").index(rank))
        for rank in range(mesh.world)
    ]
    made = {
        (cp, ep): stage_programs(job, layers, first, last, cp_rank=cp, ep_rank=ep)
        for cp, ep in dict.fromkeys(places)
    }
    of_rank = [made[place] for place in places]
    out = {}
    for kind in kinds:
        graph = _whole_graph([programs[kind] for programs in of_rank], job)
        works = [work for work in graph.works if isinstance(work, Communication)]
        found = loads(cluster, job, (), works)
        assert found is not None  # nothing is folded
        out[kind] = simulate(graph, price(graph, cluster, dict(zip(works, found, strict=True))))
    return out


def _whole_graph(programs: Sequence[Program], job: Job) -> Graph:
    """Return the graph of the programs of all ranks; the n-th collectives of a group meet."""
    builder, rendezvous = Builder(), dict[tuple[str, tuple[int, ...], int], list[int]]()
    for rank in range(job.mesh.world):
        at = job.mesh.coordinates(rank)
        lane = Lane(at["tp"], at["cp"], at["dp"])
        count, ops = Counter[str](), list[int]()
        for item in programs[rank]:
            waits = [ops[need] for need in item.needs if isinstance(need, int)]
            if not isinstance(item, Collective):
                ops.append(
                    builder.add(item.name, rank, "compute", item.work, waits, phase=item.phase)
                )
                continue
            work = _communication(item, group(job, item.axis, lane, 0))
            stream = item.stream or item.axis
            ops.append(builder.add(item.name, rank, stream, work, waits, phase=item.phase))
            count[item.axis] += 1
            rendezvous.setdefault((item.axis, work.ranks, count[item.axis]), []).append(ops[-1])
    for same in rendezvous.values():
        builder.join(same)
    return builder.graph()


def _communication(item: Collective, ranks: tuple[int, ...]) -> Communication:
    return Communication(item.collective, item.bytes, ranks, item.axis, item.algorithm)


def _run(program: Program, job: Job, cluster: Cluster) -> Timeline:
    graph = _graph(program, job)
    works = [work for work in graph.works if isinstance(work, Communication)]
    found = loads(cluster, job, ("tp",) if job.mesh.tp > 1 else (), works)
    if found is None:
        raise InputError("the ranks of the tensor-parallel group are not alike; use a uniform node")
    return simulate(graph, price(graph, cluster, dict(zip(works, found, strict=True))))


def _graph(program: Program, job: Job) -> Graph:
    """Return the graph of a program on rank 0, which stands for all; inputs are there at 0 s."""
    builder = Builder()
    for item in program:
        waits = [need for need in item.needs if isinstance(need, int)]
        if isinstance(item, Collective):
            work = _communication(item, group(job, item.axis, Lane(0, 0, 0), 0))
            stream = item.stream or item.axis
            builder.join([builder.add(item.name, 0, stream, work, waits, phase=item.phase)])
        else:
            builder.add(item.name, 0, "compute", item.work, waits, phase=item.phase)
    return builder.graph()
