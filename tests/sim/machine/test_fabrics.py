"""Fabrics: routes by networkx, bisection in closed form and as a maximum flow, and folding."""

from collections import Counter
from functools import cache

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.builder.mesh import Mesh
from sim.graph import Communication
from sim.machine import dragonfly, torus
from sim.machine.cluster import load
from sim.machine.collectives import alone, traffic
from sim.machine.symmetry import fold_loads
from tests.recipes import ran
from tests.sim.machine.test_symmetry import folded_rates, orbits_of, unfolded_rates

NODE = """
base = "dgx_a100"
name = "small"
[node]
gpus = 2
[node.nic]
count = 2
bandwidth = "10 GB/s"
efficiency = 0.5
[fabric]
latency = "1 us"
source = "a test's own, as what is above"
"""
PORT = 5e9  # effective B/s
KINDS = {
    "torus": 'kind = "torus"\nshape = "4x3x2"\nlink_bandwidth = "6 GB/s"\n',
    "dragonfly": (
        'kind = "dragonfly"\nnodes_per_leaf = 2\nleaves_per_group = 3\n'
        'local_bandwidth = "8 GB/s"\nglobal_bandwidth = "14 GB/s"\n'
    ),
    "three tiers": (
        'kind = "fat_tree"\nnodes_per_leaf = 2\nnodes_per_spine = 6\n'
        "oversubscription = 2\nspine_oversubscription = 5\n"
    ),
    "rails": (
        'kind = "rail"\nrails = 2\nnodes_per_leaf = 2\nnodes_per_spine = 6\noversubscription = 3\n'
        "[node] of 4 GPUs and ports\n"
    ),
}
GPUS = 48  # 24 nodes: the whole torus, four groups, four spines


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    @cache
    def build(kind, gpus=GPUS):
        path = tmp_path_factory.mktemp("t") / "small.toml"
        fabric, _, node = KINDS[kind].partition("[node] of 4")
        text = NODE.replace("gpus = 2", "gpus = 4").replace("count = 2", "count = 4")
        path.write_text((text if node else NODE) + fabric)
        return load(path, gpus)

    return build


def ends(cluster, a, b):
    return [cluster.links[link] for link in cluster.route(a, b)]


@pytest.mark.parametrize("kind", KINDS)
def test_routes_are_shortest_paths_between_gpus(small, kind):
    """As long as networkx finds them with other GPUs left out, never twice over one switch."""
    cluster = small(kind)
    for a in (0, 5, 21, 46):
        for b in set(range(GPUS)) - {a}:
            others = [gpu for gpu in range(GPUS) if gpu not in (a, b)]
            if cluster.node(a) != cluster.node(b):  # not through the NVSwitch of either
                others += [f"nvswitch {cluster.node(gpu)}" for gpu in (a, b)]
            if kind == "dragonfly":  # nor over a third group
                groups = [dragonfly.router({"nodes_per_leaf": 6}, gpu // 2).group for gpu in (a, b)]
                routers = [node for node in cluster.network if str(node).startswith("router")]
                others += [at for at in routers if int(at[7:].split(".")[0]) not in groups]
            net = nx.restricted_view(cluster.graph, others, [])
            path = [a, *(v for _, v in ends(cluster, a, b))]
            assert path[-1] == b
            assert len(set(path)) == len(path)
            assert nx.is_path(net, path)
            assert len(path) - 1 == nx.shortest_path_length(net, a, b)


def test_a_torus_goes_dimension_by_dimension_the_shorter_way_round(small):
    """From node 0.0.0 to 3.2.1 of 4 x 3 x 2: one step down twice, one up where both are one."""
    path = [v for _, v in ends(small("torus"), 0, 2 * 23 + 1)]
    assert path[2:-2] == ["router 3.0.0", "router 3.2.0", "router 3.2.1"]
    halfway = [v for _, v in ends(small("torus"), 0, 2 * 12)]
    assert halfway[2:-2] == ["router 1.0.0", "router 2.0.0"]


@pytest.mark.slow
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
@settings(max_examples=60, deadline=None)
def test_a_torus_of_any_shape_is_the_product_of_networkx_cycles(shape, data):
    """The same number of cables, and routes as long as the shortest paths in grid_graph."""
    table = {"shape": "x".join(map(str, shape)), "link_bandwidth": 1.0}
    ours = nx.Graph((a.at, b.at) for a, b, _ in torus.cables(table))
    theirs = nx.grid_graph(list(reversed(shape)), periodic=True)
    theirs = nx.relabel_nodes(theirs, lambda at: at if isinstance(at, tuple) else (at,))
    theirs.remove_edges_from(nx.selfloop_edges(theirs))
    assert nx.utils.edges_equal(ours.edges, theirs.edges)
    a, b = (torus.router(table, data.draw(st.integers(0, torus.room(table) - 1))) for _ in "ab")
    path = [at.at for at in torus.path(table, a, b)]
    assert len(path) - 1 == nx.shortest_path_length(theirs, a.at, b.at)
    assert nx.is_path(theirs, path)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 40), st.data())
@settings(max_examples=60, deadline=None)
def test_a_dragonfly_of_any_size_joins_all_leaves_of_a_group_and_all_groups(
    below, leaves, nodes, data
):
    """Cables counted in closed form; routes follow cables, at most three of them, one global."""
    table = {"nodes_per_leaf": below, "leaves_per_group": leaves}
    table |= {"local_bandwidth": 1.0, "global_bandwidth": 2.0}
    net = nx.Graph()
    net.add_weighted_edges_from(dragonfly.cables(table, nodes))
    groups = -(-nodes // (below * leaves))
    count = Counter(weight for *_, weight in net.edges(data="weight"))
    pairs = {1.0: groups * leaves * (leaves - 1) // 2, 2.0: groups * (groups - 1) // 2}
    assert count == Counter({weight: n for weight, n in pairs.items() if n})
    a, b = (dragonfly.router(table, data.draw(st.integers(0, nodes - 1))) for _ in "ab")
    path = dragonfly.path(table, a, b)
    assert len(path) <= 4
    assert nx.is_path(net, path) or path == [a]
    assert [net.edges[link]["weight"] for link in nx.utils.pairwise(path)].count(2.0) == (
        a.group != b.group
    )


HALVES = {  # B/s each way that cross between the two halves of the nodes
    "torus": 2 * 3 * 2 * 6e9 / 2,  # two cuts through the longest dimension, 3 x 2 links each
    "dragonfly": 2 * 2 * 14e9 / 2,  # each of two groups to each of two
    "three tiers": 2 * (6 * 2 * PORT / 2 / 5),  # two spines' ports, tapered twice
    "rails": 6 * 4 * PORT / 3,
}


@pytest.mark.parametrize("kind", KINDS)
def test_bisection_bandwidth_is_the_closed_form(small, kind):
    """The most that GPUs of one half can send to those of the other, as networkx finds it."""
    cluster = small(kind)
    net = nx.DiGraph()
    for (u, v), capacity in zip(cluster.links, cluster.capacity.tolist(), strict=True):
        net.add_edge(u, v, capacity=capacity)
    for gpu in range(GPUS):
        edge = ("source", gpu) if gpu < GPUS // 2 else (gpu, "target")
        net.add_edge(*edge)
    assert nx.maximum_flow_value(net, "source", "target") == pytest.approx(HALVES[kind])


def test_ports_are_dealt_to_rails_in_turn(small):
    """Ports 0 and 2 to one leaf, 1 and 3 to the other; a leaf's trunk is that of its ports."""
    cluster = small("rails")
    leaves = [{v for _, v in ends(cluster, gpu, gpu + 4)} for gpu in range(4)]
    assert ["leaf 0.0" in found for found in leaves] == [True, False, True, False]
    assert ["leaf 0.1" in found for found in leaves] == [False, True, False, True]
    trunk = cluster.capacity[cluster.index["leaf 0.0", "spine 0"]]
    assert trunk == pytest.approx(2 * 2 * PORT / 3)


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.tuples(st.integers(0, 47), st.integers(0, 47), st.floats(0.1, 9)), min_size=1))
@settings(max_examples=25, deadline=None)
def test_links_left_out_follow_from_those_that_stay(small, kind, flows):
    cluster = small(kind)
    load_ = [0.0] * len(cluster.links)
    for a, b, size in flows:
        for link in cluster.route(a, b):
            load_[link] += size
    fill = load_ / cluster.capacity
    assert fill.max() <= fill[cluster.limiting].max(initial=0.0) * (1 + 1e-9)


SHAPES = [(2, 24, 1), (2, 12, 2), (2, 4, 6), (1, 12, 4), (2, 3, 8), (4, 12, 1)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_where_folding_is_allowed_folded_rates_are_the_unfolded_ones(small, kind, shape):
    cluster, mesh = small(kind), Mesh(tp=shape[0], dp=shape[1], pp=shape[2])
    orbits = [orbit for orbit in orbits_of(cluster, mesh) if orbit]
    folded = fold_loads(cluster, orbits)
    if folded is None:
        return
    for chosen in (range(len(orbits)), *((i,) for i in range(len(orbits)))):
        speeds = folded_rates(cluster, [folded[i] for i in chosen])
        unfolded = unfolded_rates(cluster, [orbits[i] for i in chosen])
        for speed, members in zip(speeds, unfolded, strict=True):
            assert members == pytest.approx([speed] * len(members), rel=1e-9)


def test_folding_is_allowed_somewhere_and_refused_where_replicas_differ(small):
    """A whole torus looks alike from every node; tapered spines do not from within one."""

    def folds(kind, tp, dp, pp):
        cluster = small(kind)
        return fold_loads(cluster, [o for o in orbits_of(cluster, Mesh(tp=tp, dp=dp, pp=pp)) if o])

    assert folds("torus", 2, 24, 1) is not None
    assert folds("dragonfly", 2, 24, 1) is not None
    assert folds("torus", 2, 3, 8) is None


WHOLE_STEPS = [  # fabric or machine, GPUs, tp, dp, pp; which axes are folded
    ("torus", 48, (2, 12, 2), ["tp"]),
    ("torus", 48, (2, 24, 1), ["tp", "dp"]),
    ("dragonfly", 48, (2, 6, 4), ["tp"]),
    ("dragonfly", 48, (2, 24, 1), ["tp", "dp"]),
    ("roce_h100", 32, (8, 2, 2), ["tp", "dp"]),
    ("h100_pcie_4nic", 16, (2, 8, 1), ["tp", "dp"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "gpus", "axes", "folded"), WHOLE_STEPS)
def test_a_folded_step_takes_as_long_as_the_whole_one(name, gpus, axes, folded, tmp_path):
    path = tmp_path / f"{name}.toml"
    path.write_text(NODE + KINDS[name] if name in KINDS else f'base = "{name}"\n')
    model = {"preset": "gpt-22b", "layers": axes[2], "attention": "flash"}
    way = dict(zip(("tp", "dp", "pp"), axes, strict=True)) | {"topology": path, "gpus": gpus}
    short = ran(model, 2 * axes[1], **way).summary
    whole = ran(model, 2 * axes[1], simulation={"fold": "none"}, **way).summary
    assert short["simulation"]["folded"] == folded
    assert short["step_time_s"] == pytest.approx(whole["step_time_s"], rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_across_the_fabric_moves_at_the_slowest_link(small, kind):
    """128 MB alone between the corners: the least of port, and links of the route."""
    cluster = small(kind)
    work = Communication("p2p", 128e6, (0, GPUS - 1), "pp")
    slowest = min(cluster.capacity[list(cluster.route(0, GPUS - 1))])
    moved = traffic(cluster, work)
    assert alone(cluster, moved) - moved.latency == pytest.approx(128e6 / slowest)
