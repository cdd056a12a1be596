"""Routes against networkx, shared NICs by hand, and links that can never limit."""

from functools import cache

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.machine.cluster import load
from sim.machine.links import tier

FABRIC = """
base = "dgx_h100"
name = "small"
[node]
gpus = 4
source = "made up"
[node.nic]
count = {nics}
[fabric]
kind = "{kind}"
nodes_per_leaf = 2
nodes_per_spine = 4
oversubscription = {over}
source = "made up"
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    @cache
    def build(kind="rail", nics=4, over=1.0, gpus=28):
        path = tmp_path_factory.mktemp("t") / "small.toml"
        path.write_text(FABRIC.format(kind=kind, nics=nics, over=over))
        return load(path, gpus)

    return build


@pytest.mark.parametrize("nics", [4, 2, 1])
@pytest.mark.parametrize("kind", ["rail", "fat_tree"])
def test_routes_are_those_of_least_latency(small, kind, nics):
    """Against networkx over the whole graph, other GPUs left out: they do not pass traffic on."""
    cluster = small(kind, nics)
    for a in range(0, cluster.gpus, 9):
        for b in set(range(cluster.gpus)) - {a}:
            others = [gpu for gpu in range(cluster.gpus) if gpu not in (a, b)]
            net = nx.restricted_view(cluster.graph, others, [])
            best = nx.dijkstra_path_length(net, a, b, weight="latency")
            route = cluster.route(a, b)
            ends = [cluster.links[link] for link in route]
            assert ends[0][0] == a
            assert ends[-1][1] == b
            assert all(u[1] == v[0] for u, v in nx.utils.pairwise(ends))
            assert cluster.latency(route) == pytest.approx(best)


def test_inside_a_node_one_switch_between_nodes_of_a_rail_one_leaf():
    cluster = load("selene", 5000 // 8 * 8 - 8 * 65)
    between = [cluster.links[i] for i in cluster.route(3, 11)]
    assert [cluster.links[i] for i in cluster.route(3, 5)] == [(3, "nvswitch 0"), ("nvswitch 0", 5)]
    assert between == [
        (3, "nic 0.3"), ("nic 0.3", "leaf 0.3"), ("leaf 0.3", "nic 1.3"), ("nic 1.3", 11),
    ]  # fmt: skip


@pytest.mark.slow
def test_selene_has_three_tiers():
    """Within 20 nodes a leaf, within 140 a spine, beyond a core: 1, 3 and 5 switches."""
    cluster = load("selene", 4480)
    switches = [len(cluster.route(0, 8 * node)) - 3 for node in (1, 19, 20, 139, 140, 559)]
    assert switches == [1, 1, 3, 3, 5, 5]


def test_two_gpus_share_a_nic(small):
    cluster = small(nics=2)
    first, second = cluster.route(0, 4), cluster.route(1, 5)
    assert first[0] != second[0]
    assert first[1] == second[1]


def test_route_to_itself_and_to_nowhere():
    cluster = load("dgx_a100", 8)
    assert cluster.route(3, 3) == ()
    with pytest.raises(ValueError, match="rank 8 is not among the 8 GPUs of dgx_a100"):
        cluster.route(0, 8)


def test_capacity_is_nominal_times_efficiency():
    cluster = load("dgx_h100", 8)
    assert cluster.capacity.tolist() == pytest.approx([450e9 * 0.816] * 16)
    assert cluster.latency(cluster.route(0, 7)) == pytest.approx(0.3e-6)


def by_kind(cluster):
    """(kind of one end, kind of the other) -> whether such links limit."""
    out = {}
    for (u, v), limits in zip(cluster.links, cluster.limiting, strict=True):
        kind = tuple(tier(cluster.network, end) for end in (u, v))
        out.setdefault(kind, set()).add(bool(limits))
    return out


def test_only_ports_limit_in_a_non_blocking_fabric():
    limits = by_kind(load("selene", 8 * 150))
    assert {kind for kind, of in limits.items() if True in of} == {
        ("gpu", "nvswitch"), ("nvswitch", "gpu"), ("gpu", "nic"), ("nic", "gpu"),
    }  # fmt: skip
    assert limits["leaf", "spine"] == limits["spine", "core"] == limits["nic", "leaf"] == {False}


def test_shared_nics_and_oversubscribed_trunks_limit(small):
    assert by_kind(small(nics=2))["nic", "leaf"] == {True}
    assert by_kind(small(nics=2))["gpu", "nic"] == {False}
    assert by_kind(small(over=2.0))["leaf", "spine"] == {True, False}  # the last leaf is half full


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([("rail", 4, 1.0), ("rail", 2, 1.0), ("fat_tree", 4, 3.0), ("rail", 1, 1.5)]),
    st.lists(
        st.tuples(st.integers(0, 27), st.integers(0, 27), st.floats(0.1, 9.0)),
        min_size=1, max_size=60,
    ),
)  # fmt: skip
def test_links_left_out_follow_from_those_that_stay(small, shape, flows):
    """Any traffic that fits the limiting links fits the others."""
    cluster = small(*shape)
    load_ = np.zeros(len(cluster.links))
    for a, b, size in flows:
        load_[list(cluster.route(a, b))] += size
    fill = load_ / cluster.capacity
    assert fill.max() <= fill[cluster.limiting].max(initial=0.0) * (1 + 1e-9)


def test_size_of_a_large_cluster():
    """Four links to the NVSwitch and the NIC per GPU and one cable above: 3,072 GPUs at once."""
    cluster = load("dgx_a100", 3072)
    assert len(cluster.links) == 6 * 3072
    assert cluster.limiting.sum() == 4 * 3072
