"""Folding is exact where it is allowed: folded rates are the unfolded; broken ones are refused."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.builder.mesh import Mesh
from sim.graph import Communication
from sim.machine.cluster import load
from sim.machine.collectives import Traffic, alone, traffic
from sim.machine.network import fair_rates, rates
from sim.machine.symmetry import fold_loads

FOUR_NICS = 'base = "dgx_a100"\nname = "four"\n[node.nic]\ncount = 4\nsource = "made up"\n'


def orbits_of(cluster, mesh):
    """Per stage: the tensor-parallel and data-parallel collectives, and messages both ways."""
    out = []
    for stage in range(mesh.pp):
        ranks = [r for r in range(mesh.world) if mesh.coordinates(r)["pp"] == stage]
        for axis, size in (("tp", 3e8), ("dp", 7e9)):
            groups = sorted({mesh.group_of(rank, axis) for rank in ranks})
            out.append([Communication("all_reduce", size, group, axis, "ring") for group in groups])
        for rank, to in ((0, 1), (1, 0)) if stage + 1 < mesh.pp else ():
            pairs = [mesh.group_of(r, "pp")[stage : stage + 2] for r in ranks]
            out.append([Communication("p2p", 5e7, (p[rank], p[to]), "pp") for p in pairs])
    return [[traffic(cluster, work) for work in orbit if len(work.ranks) > 1] for orbit in out]


def unfolded_rates(cluster, orbits):
    members = [member for orbit in orbits for member in orbit]
    loads = [dict(zip(m.links.tolist(), m.bytes.tolist(), strict=True)) for m in members]
    speeds = iter(rates(loads, dict(enumerate(cluster.capacity.tolist()))))
    return [[next(speeds) for _ in orbit] for orbit in orbits]


def folded_rates(cluster, folded):
    links, row = np.unique(np.concatenate([f.links for f in folded]), return_inverse=True)
    own = np.concatenate([f.bytes / f.most for f in folded])
    start = np.cumsum([0] + [len(f.links) for f in folded])
    speed, scratch = [0.0] * len(folded), [[0.0] * len(links) for _ in range(3)]
    fair_rates(start, row, own, cluster.capacity[links], speed, *scratch, [0] * len(folded))
    return speed


@cache
def job(tp, dp, pp, topology="dgx_a100", gpus=None):
    mesh = Mesh(tp=tp, dp=dp, pp=pp)
    cluster = load(topology, gpus or mesh.world)
    return cluster, [orbit for orbit in orbits_of(cluster, mesh) if orbit]


SHAPES = [(8, 2, 2), (4, 2, 3), (2, 4, 2), (2, 8, 2), (4, 4, 1), (1, 8, 3), (8, 1, 3)]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SHAPES), st.data())
def test_folded_rates_are_the_unfolded_ones(shape, data):
    """Whichever of the orbits are under way: all members of each at the folded speed."""
    cluster, orbits = job(*shape)
    folded = fold_loads(cluster, orbits)
    assert folded is not None
    active = st.lists(st.integers(0, len(orbits) - 1), min_size=1, unique=True)
    chosen = sorted(data.draw(active))
    speeds = folded_rates(cluster, [folded[i] for i in chosen])
    for speed, members in zip(
        speeds, unfolded_rates(cluster, [orbits[i] for i in chosen]), strict=True
    ):
        assert members == pytest.approx([speed] * len(members), rel=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_alone_the_representative_takes_as_long_as_its_orbit(shape):
    """Where no member meets another, that is as long as one member alone."""
    cluster, orbits = job(*shape)
    for orbit, one in zip(orbits, fold_loads(cluster, orbits), strict=True):
        slowest = min(min(row) for row in unfolded_rates(cluster, [orbit]))
        alike = Traffic(one.links, one.bytes, one.latency, one.algorithm)
        assert alone(cluster, alike) == pytest.approx(one.latency + one.most / slowest)


def test_two_clones_on_one_nic_load_it_twice(tmp_path):
    (tmp_path / "four.toml").write_text(FOUR_NICS)
    cluster = load(tmp_path / "four.toml", 16)
    messages = [traffic(cluster, Communication("p2p", 6e6, (r, r + 8), "pp")) for r in range(8)]
    (folded,) = fold_loads(cluster, [messages])
    assert folded.most == 6e6
    assert folded.bytes.tolist() == [12e6]  # up and down are alike: one link stands for all
    assert folded_rates(cluster, [folded]) == pytest.approx([25e9 * 0.96 / 2])


def test_one_slow_link_breaks_the_symmetry():
    cluster, orbits = job(8, 2, 2)
    network = cluster.network.copy()
    network.edges[9, "nvswitch 1"]["bandwidth"] /= 1.5
    slow = replace(cluster, network=network)
    assert fold_loads(cluster, orbits) is not None
    assert fold_loads(slow, orbits) is None


def test_a_link_nobody_uses_breaks_nothing():
    cluster, orbits = job(2, 2, 2, gpus=16)
    network = cluster.network.copy()
    network.edges[9, "nvswitch 1"]["bandwidth"] /= 1.5
    assert fold_loads(replace(cluster, network=network), orbits) is not None


def test_traffic_of_its_own_on_one_replica_breaks_the_symmetry():
    cluster, orbits = job(8, 2, 2)
    extra = [traffic(cluster, Communication("broadcast", 1e6, (0, 1), "tp"))]
    assert fold_loads(cluster, [*orbits, extra]) is None


def test_members_of_unlike_size_are_refused():
    cluster, orbits = job(8, 2, 2)
    big = orbits[0][0]._replace(bytes=orbits[0][0].bytes * 2)
    assert fold_loads(cluster, [[big, *orbits[0][1:]], *orbits[1:]]) is None


def test_latencies_apart_are_said_and_the_longest_counts():
    """On Selene stage 0 to 1 crosses a leaf for one replica alone: 0.6 us more."""
    cluster, orbits = job(8, 12, 2, "selene")
    folded = fold_loads(cluster, orbits)
    assert folded is not None
    assert folded[2].latency == max(member.latency for member in orbits[2])
    assert folded[2].apart == pytest.approx(0.6e-6, rel=1e-9)
    cluster, orbits = job(8, 2, 2)
    assert [one.apart for one in fold_loads(cluster, orbits)] == [0.0] * len(orbits)


@pytest.mark.slow
def test_a_job_of_3072_gpus_folds_to_one_link_per_class():
    """TP 8, DP 6, PP 64: a stage's TP uses one class; DP and messages NICs up and down."""
    cluster = load("dgx_a100", 3072)
    mesh = Mesh(tp=8, dp=6, pp=64)
    stages = (0, 1, 62, 63)
    orbits = [
        [traffic(cluster, Communication("p2p", 5e7, (r, r + 48), "pp")) for r in ranks]
        for ranks in (range(48 * s, 48 * s + 48) for s in stages[:-1])
    ]
    orbits += [
        [traffic(cluster, Communication("all_reduce", 1e9, g, "dp", "ring")) for g in groups]
        for groups in ([g for g in mesh.groups("dp") if g[0] // 48 == stage] for stage in stages)
    ]
    folded = fold_loads(cluster, orbits)
    assert folded is not None
    assert max(len(one.links) for one in folded) == 2


def test_nothing_folds_to_nothing():
    assert fold_loads(load("dgx_a100", 8), []) == []
