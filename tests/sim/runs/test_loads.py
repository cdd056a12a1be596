"""The proof of folding against a plain one that lists every replica and refines step by step."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from sim.builder.groups import atoms, shifted
from sim.builder.job import Job
from sim.graph import Communication
from sim.machine.cluster import Cluster, load
from sim.machine.collectives import Traffic, traffic
from sim.machine.price import LinkLoad
from sim.perturbations import slowed
from sim.recipe.sections import PerturbationSection
from sim.runs.fold import candidates, loads
from sim.runs.run import build, job_of
from sim.runs.run import load as recipe

MODEL = "hidden = 64\nheads = 16\nkv_heads = 4\nffn = 128\nvocab = 128\nsequence = 64\n"
EXPERTS = "experts = 8\ntopk = 2\nexpert_ffn = 32\n"
TREE = 'nodes_per_leaf = 2\nnodes_per_spine = 4\noversubscription = 2.0\nlatency = "0.3 us"\n'
FABRICS = {
    "rails": f'[fabric]\nkind = "rail"\n{TREE}',
    "flat": '[fabric]\nkind = "rail"\nnodes_per_leaf = 1\nnodes_per_spine = 2\nlatency = "5 us"\n',
    "tree": f'[fabric]\nkind = "fat_tree"\n{TREE}spine_oversubscription = 2.0\n',
    "fly": '[fabric]\nkind = "dragonfly"\nnodes_per_leaf = 2\nleaves_per_group = 2\n'
    'local_bandwidth = "80 GB/s"\nglobal_bandwidth = "50 GB/s"\nlatency = "0.3 us"\n',
    "torus": '[fabric]\nkind = "torus"\nshape = "4x8x8"\nlink_bandwidth = "50 GB/s"\n'
    'latency = "0.3 us"\n',
}
SINGLE = "[node]\ngpus = 1\nsource = '-'\n[node.nic]\ncount = 1\nsource = '-'\n"
PAIR = "[node]\ngpus = 8\nsource = '-'\n[node.nic]\ncount = 4\nsource = '-'\n"


def drawn(seed: int, folder: Path) -> tuple[Cluster, Job]:
    """Return a job of some kind on some fabric, in a third of all cases with a slow NIC."""
    rng = random.Random(seed)
    fabric = rng.choice([*FABRICS])
    node = rng.choice(["", "", SINGLE, PAIR])
    head = f'name = "drawn"\nbase = "dgx_a100"\n{node}{FABRICS[fabric]}'
    places = "" if fabric == "torus" else "max_nodes = 256\n"
    topology = folder / "drawn.toml"
    topology.write_text(f'{head}{places}source = "-"\n')
    kind = rng.choice(["dense", "fsdp2", "hsdp", "experts", "context"])
    tp, pp, dp = rng.choice([1, 2, 4]), rng.choice([1, 2, 3]), rng.choice([2, 4, 8])
    more = {
        "dense": f"zero = {rng.choice([0, 1])}\n",
        "fsdp2": 'fsdp = { kind = "fsdp2" }\n',
        "hsdp": 'fsdp = { kind = "fsdp2", shard = 2 }\n',
        "experts": f"ep = {rng.choice([2, dp])}\netp = 1\nsp = {str(tp > 1).lower()}\n",
        "context": f'cp = 2\ncp_kind = "{rng.choice(["ring", "ulysses", "allgather"])}"\n',
    }[kind]
    if kind in ("fsdp2", "hsdp"):
        pp = 1
    elif kind != "experts" and rng.random() < 0.5:
        more += 'order = "tp-cp-ep-pp-dp"\n'
    gpus = tp * pp * dp * (2 if kind == "context" else 1)
    path = folder / "recipe.toml"
    path.write_text(
        f"[model]\nlayers = {max(pp, 2)}\n{MODEL}{EXPERTS if kind == 'experts' else ''}"
        f'[cluster]\ntopology = "{topology}"\ngpus = {gpus}\n'
        f"[parallelism]\ntp = {tp}\npp = {pp}\ndp = {dp}\n{more}"
        f"[training]\nmicro_batch = 1\nglobal_batch = {2 * pp * dp}\n"
    )
    found = recipe(path)
    cluster = load(str(topology), gpus)
    if rng.random() < 1 / 3 and gpus > cluster.gpus_per_node:
        table = PerturbationSection(link="pcie", rank=rng.randrange(gpus), bandwidth=0.5)
        cluster = slowed(cluster, [table])
    return cluster, job_of(found, cluster)


def images(job: Job, names: tuple[str, ...], ranks: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Shift a group by every step along every atom, and keep each set of ranks once."""
    over = atoms(job)
    lane_of = {int(rank): lane for lane, row in enumerate(job.grid) for rank in row}
    stage_of = {int(rank): q for row in job.grid for q, rank in enumerate(row)}
    out: dict[frozenset[int], tuple[int, ...]] = {}
    for steps in product(*(range(a.size if a.name in names else 1) for a in over[::-1])):
        image = []
        for rank in ranks:
            lane, at, stride = lane_of[rank], 0, 1
            for atom, step in zip(over, steps[::-1], strict=True):
                at += (lane % atom.size + step) % atom.size * stride
                lane, stride = lane // atom.size, stride * atom.size
            image.append(int(job.grid[at, stage_of[rank]]))
        out.setdefault(frozenset(image), tuple(image))
    return [*out.values()]


def plain(cluster: Cluster, orbits: list[list[Traffic]]) -> list[LinkLoad] | None:
    """Refine colours of links and members in turn until they stay, in dictionaries."""
    members = [(o, m) for o, orbit in enumerate(orbits) for m in orbit]
    if any(not np.isclose(_most(m), _most(orbits[o][0]), rtol=1e-12, atol=0) for o, m in members):
        return None
    rows = [
        (k, link, round(size / _most(m), 12), size)
        for k, (_, m) in enumerate(members)
        for link, size in zip(m.links.tolist(), m.bytes.tolist(), strict=True)
        if cluster.limiting[link]
    ]
    colour: dict[int, object] = {link: float(cluster.capacity[link]) for _, link, *_ in rows}
    while True:
        of_member, of_link = Counter[object](), Counter[object]()
        for k, link, share, _ in rows:
            of_member[k, colour[link], share] += 1
            of_link[link, members[k][0], share] += 1
        looks: list[set[object]] = [set() for _ in members]
        for (k, *look), count in of_member.items():
            looks[k].add((*look, count))
        each = {(members[k][0], frozenset(look)) for k, look in enumerate(looks)}
        if len(each) > len(orbits):
            return None
        seen: dict[int, set[object]] = {link: set() for link in colour}
        for (link, *look), count in of_link.items():
            seen[link].add((*look, count))
        finer = {link: (of, frozenset(seen[link])) for link, of in colour.items()}
        number = {look: n for n, look in enumerate(dict.fromkeys(finer.values()))}
        if len(number) == len(set(colour.values())):
            break
        colour = {link: number[look] for link, look in finer.items()}
    firsts = {of: min(k for k, c in colour.items() if c == of) for of in colour.values()}
    return [_load(orbit, o, members, rows, {*firsts.values()}) for o, orbit in enumerate(orbits)]


def _load(orbit, o, members, rows, firsts) -> LinkLoad:
    shares: dict[tuple[int, float], list[float]] = {}
    for k, link, share, size in rows:
        if members[k][0] == o and link in firsts:
            shares.setdefault((link, share), []).append(size)
    total: dict[int, float] = {}
    for (link, _), sizes in sorted(shares.items()):
        total[link] = total.get(link, 0.0) + len(sizes) * sizes[0]
    slow = max(member.latency for member in orbit)
    gap = slow - min(member.latency for member in orbit)
    first = orbit[0]
    return LinkLoad(
        (*total,), (*total.values(),), _most(first) if len(first.links) else 0.0, slow,
        first.algorithm, gap if gap > 1e-12 * slow else 0.0,
    )  # fmt: skip


def _most(member: Traffic) -> float:
    return max(member.bytes.tolist(), default=1.0)


SEEDS = [pytest.param(k, marks=[] if k in (1, 6, 8) else [pytest.mark.slow]) for k in range(80)]


@pytest.mark.parametrize("seed", SEEDS)
def test_loads_are_those_of_every_replica_to_the_bit(tmp_path: Path, seed: int) -> None:
    """All ways to fold: the same proof or none, the same links, bytes and latencies."""
    cluster, job = drawn(seed, tmp_path)
    for way in candidates(job):
        if not way.atoms:
            continue
        works = [w for w in build(job, way).works if isinstance(w, Communication)]
        each = [images(job, way.atoms, work.ranks) for work in works]
        for work, some in zip(works, each, strict=True):
            found = shifted(job, way.atoms, work.ranks, atoms(job))
            assert [*map(tuple, found.tolist())] == some
        orbits = [
            [traffic(cluster, work._replace(ranks=ranks)) for ranks in some]
            for work, some in zip(works, each, strict=True)
        ]
        assert loads(cluster, job, way.atoms, works) == plain(cluster, orbits)
