"""Double binary trees: the trees of the paper, closed forms alone, and where they beat rings."""

from collections import Counter
from dataclasses import replace

import networkx as nx
import pytest

from sim.graph import Communication
from sim.machine.cluster import load
from sim.machine.collectives import alone, traffic, tree

NODES = [2, 3, 4, 6, 8, 10, 13, 100, 384]


def bare(name, gpus):
    """A shipped machine without fitted constants: routes and capacities alone."""
    return replace(load(name, gpus), collectives={})


def run(cluster, size, ranks, algorithm="tree"):
    return traffic(cluster, Communication("all_reduce", size, tuple(ranks), "dp", algorithm))


def edges(parents):
    return [(parent, node) for node, parent in enumerate(parents.tolist()) if parent >= 0]


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("parents", [tree.parents, tree.mirrored])
def test_each_is_one_binary_tree_of_logarithmic_depth(nodes, parents):
    """Against networkx: everyone is reached from the root, over log2 of the nodes at most."""
    found = nx.DiGraph(edges(parents(nodes)))
    assert nx.is_arborescence(found)
    assert len(found) == nodes
    assert max(degree for _, degree in found.out_degree) <= 2
    root = next(node for node, degree in found.in_degree if degree == 0)
    depth = max(nx.single_source_shortest_path_length(found, root).values())
    assert depth == tree.depth(nodes)
    assert 2 ** (tree.depth(nodes) - 1) < nodes <= 2 ** tree.depth(nodes)


@pytest.mark.parametrize("nodes", NODES)
def test_who_has_two_children_in_one_tree_is_a_leaf_of_the_other(nodes):
    """Sanders et al. 2009: so that nobody sends more than the whole buffer up and down."""
    first, second = (
        Counter(up for up, _ in edges(p(nodes))) for p in (tree.parents, tree.mirrored)
    )
    assert all(first[node] + second[node] <= 2 for node in range(nodes))


def test_the_trees_of_twelve_nodes_are_those_in_nccls_source():
    """The drawing in src/graph/trees.cc: 0 - 8 - (4, 10), 4 - (2, 6), and its mirror image."""
    assert tree.parents(12).tolist() == [-1, 2, 4, 2, 8, 6, 4, 6, 0, 10, 8, 10]
    assert tree.mirrored(12).tolist() == [1, 3, 1, 11, 5, 7, 5, 3, 9, 7, 9, -1]


@pytest.mark.parametrize("nodes", [2, 3, 10, 32])
@pytest.mark.parametrize("each", [1, 2, 8])
def test_bytes_are_those_of_every_half_up_once_and_down_once(nodes, each):
    """A node sends each half to its parent, and down to each child; ports carry the most sent."""
    cluster = bare("selene", 8 * nodes)
    ranks = [8 * node + i for node in range(nodes) for i in range(each)]
    found = run(cluster, 6e8, ranks)
    loads = dict(zip(found.links.tolist(), found.bytes.tolist(), strict=True))
    pairs = edges(tree.parents(nodes)) + edges(tree.mirrored(nodes))
    sends = Counter(end for pair in pairs for end in pair)
    ports = {
        node: loads[cluster.index[8 * node, cluster.ways[8 * node][-1][1]]] for node in range(nodes)
    }
    assert set(ports.values()) == {max(sends.values()) * 6e8 / 2 / each}
    assert all(sends[node] * 6e8 / 2 / each <= ports[node] * (1 + 1e-12) for node in range(nodes))
    assert sum(sends.values()) == 4 * (nodes - 1)
    chain = 0 if each == 1 else 2 * 6e8 * (each - 1) / each
    assert loads.get(cluster.index[0, "nvswitch 0"], 0) == pytest.approx(chain)


def test_alone_it_takes_its_hops_and_twice_the_buffer():
    """32 nodes of 8: 14 hops of 0.3 us and 10 of 2.6 us, and 2 / 8 of the buffer at 24 GB/s."""
    cluster = bare("dgx_a100", 256)
    seconds = 2 * 7 * 0.3e-6 + 2 * 5 * 2.6e-6 + 2 * 8e8 / 8 / 24e9
    assert alone(cluster, run(cluster, 8e8, range(256))) == pytest.approx(seconds)


def test_constants_of_its_own_table_enter():
    """Four bytes among 384 DGX A100: 18 hops of 5 us and 14 of 0.6 us after 8.6 us, as in LL.

    The routes that lead over the core have two hops of 0.3 us more in a fabric of three tiers.
    """
    cluster = load("dgx_a100", 3072)
    seconds = 8.6e-6 + 14 * 0.6e-6 + 18 * 5.0e-6
    assert alone(cluster, run(cluster, 4.0, range(3072))) == pytest.approx(seconds, rel=1e-3)


@pytest.mark.slow
def test_small_buffers_over_many_nodes_take_trees_and_large_ones_over_few_rings():
    """Rings need 6,142 rounds among 3,072 GPUs, two levels 780 and trees 32."""
    many, few = load("selene", 3072), load("dgx_h100", 16)
    for size in (4.0, 1e5, 1e7):
        found = run(many, size, range(3072), "auto")
        assert found.algorithm == "tree"
        assert alone(many, found) < alone(many, run(many, size, range(3072), "ring")) / 10
    assert alone(many, run(many, 4.0, range(3072), "hierarchical")) > 2.9e-3
    assert run(few, 1e9, range(16), "auto").algorithm == "nvls_tree"
    assert run(many, 1e9, range(16), "auto").algorithm == "ring"
    assert run(load("dgx_h100", 8), 1e9, range(8), "auto").algorithm == "nvls"


def test_where_no_tree_can_be_it_says_so_and_auto_takes_another():
    cluster = load("dgx_a100", 16)
    for ranks in (range(8), (0, 1, 8)):
        with pytest.raises(ValueError, match="a tree needs at least two nodes"):
            run(cluster, 4.0, ranks)
        assert run(cluster, 4.0, ranks, "auto").algorithm == "ring"
    without = {key: value for key, value in cluster.collectives.items() if key != "tree"}
    with pytest.raises(ValueError, match=r"and \[collectives.tree\] in the topology"):
        run(replace(cluster, collectives=without), 4.0, range(16))
