"""NVLS trees between nodes: closed forms, who can have them, and where NCCL's tuner takes what."""

import pytest

from sim.graph import Communication
from sim.machine.cluster import load
from sim.machine.collectives import alone, traffic, tuning
from sim.machine.collectives.base import place

MIB = 2**20
NODES = {2: 1 / 8, 4: 1 / 4, 10: 1 / 4}
"""Nodes, and the part of the buffer that a port carries: 2 or 4 halves of an eighth."""


def run(cluster, collective, size, algorithm="auto", ranks=None):
    ranks = tuple(ranks or range(cluster.gpus))
    return traffic(cluster, Communication(collective, float(size), ranks, "dp", algorithm))


@pytest.mark.parametrize(("nodes", "part"), NODES.items())
def test_a_port_carries_two_halves_of_an_eighth_between_two_nodes_and_four_between_more(
    nodes, part
):
    """And an NVLink the buffer once, and an eighth of it, as inside a node."""
    cluster = load("dgx_h100", 8 * nodes)
    found = run(cluster, "all_reduce", 8e8, "nvls_tree")
    loads = dict(zip(found.links.tolist(), found.bytes.tolist(), strict=True))
    assert loads[cluster.index[0, "nvswitch 0"]] == pytest.approx(9 / 8 * 8e8)
    port = cluster.index[0, cluster.ways[0][-1][1]]
    assert loads[port] == pytest.approx(part * 8e8)


def test_alone_it_takes_its_hops_and_the_slower_of_nvlink_and_ports():
    """8 GiB, by hand from the table: NVLink limits between 2 nodes, the ports between 4."""
    size = 2.0**33
    for nodes, hops, wire in (
        (2, 2, 9 / 8 * size / (450e9 * 0.616)),
        (4, 4, size / 4 / (50e9 * 0.899)),
    ):
        cluster = load("dgx_h100", 8 * nodes)
        seconds = 72.3e-6 + 2 * 0.3e-6 + hops * (52.5e-6 + 2.6e-6) + wire
        assert alone(cluster, run(cluster, "all_reduce", size, "nvls_tree")) == pytest.approx(
            seconds, rel=1e-4
        )


@pytest.mark.parametrize(
    ("name", "gpus", "ranks"),
    [
        ("dgx_h100", 16, range(15)),
        ("dgx_h100", 16, range(4, 12)),
        ("dgx_h100", 8, range(8)),
        ("dgx_a100", 16, range(16)),
        ("alps_gh200", 8, range(8)),
        ("h100_pcie_2nic", 16, range(16)),
    ],
)
def test_only_whole_nodes_with_an_nvswitch_that_adds_up_have_it(name, gpus, ranks):
    cluster = load(name, gpus)
    with pytest.raises(ValueError, match="nvls_tree needs all"):
        run(cluster, "all_reduce", 1e9, "nvls_tree", ranks)
    assert run(cluster, "all_reduce", 1e9, ranks=ranks).algorithm != "nvls_tree"


@pytest.mark.parametrize(
    ("nodes", "tree", "ring"),
    [(4, 512 * MIB, 1024 * MIB), (8, 1024 * MIB, 2048 * MIB), (10, 1024 * MIB, 2048 * MIB)],
)
def test_large_all_reduces_go_to_rings_where_measured_ones_do(nodes, tree, ring):
    """Issue 309 and xxrjun's cluster: the bandwidth jumps from one power of two to the next."""
    cluster = load("dgx_h100", 8 * nodes)
    assert run(cluster, "all_reduce", tree).algorithm == "nvls_tree"
    assert run(cluster, "all_reduce", ring).algorithm == "ring"


def test_two_nodes_never_go_to_rings_and_tiny_buffers_go_to_trees():
    cluster = load("dgx_h100", 16)
    assert run(cluster, "all_reduce", 2.0**34).algorithm == "nvls_tree"
    assert run(cluster, "all_reduce", 1024).algorithm == "tree"


def test_rings_of_all_gathers_leave_ll128_between_128_and_256_mib_on_ten_nodes():
    """Measured: 841 us, then 1,766 us. LL128 by hand: 14 + 70 x 1.9 + 9 x 4 us, 8 x 36.7 GB/s."""
    cluster = load("dgx_h100", 80)
    everyone = place(cluster, range(80))
    names = [tuning.protocol(cluster, "all_gather", everyone, s * MIB) for s in (1, 8, 128, 256)]
    assert names == ["ll", "ll128", "ll128", "simple"]
    small, large = (alone(cluster, run(cluster, "all_gather", s * MIB)) for s in (128, 256))
    assert large > 1.9 * small
    for size, seconds in ((128, 634.4e-6), (256, 1085.9e-6)):
        found = tuning.ring(cluster, "all_gather", "ll128", everyone, size * MIB)
        assert found == pytest.approx(seconds, rel=1e-3)


@pytest.mark.parametrize(("name", "ports"), [("hgx_h100_2nic", 2), ("hgx_h100_4nic", 4)])
def test_gpus_that_share_a_port_count_it_once(name, ports):
    """64 MiB over 4 nodes, in Simple by hand: 8.4 + 28 x 3.4 + 3 x 14 us, so many ports of 50 GB/s.

    NCCL counts network cards; with a port for each GPU it would take LL128.
    """
    cluster, size = load(name, 32), 64.0 * MIB
    everyone = place(cluster, range(32))
    expected = 145.6e-6 + 31 / 32 * size / (ports * 50e9)
    found = tuning.ring(cluster, "all_gather", "simple", everyone, size)
    assert found == pytest.approx(expected, rel=1e-9)
    assert tuning.protocol(cluster, "all_gather", everyone, size) == "simple"


def test_a_protocol_without_a_share_inside_nodes_runs_between_them_alone():
    """2 MiB among 8 H100 take LL or Simple by hand; LL128 would take 16 us and the bytes."""
    cluster, size = load("dgx_h100", 8), 2.0 * MIB
    simple = 21.2e-6 + 7 * 0.43e-6 + 7 / 8 * size / (450e9 * 0.724)
    low = 4.8e-6 + 7 * 0.94e-6 + 7 / 8 * size / (450e9 * 0.290)
    found = alone(cluster, run(cluster, "all_gather", size))
    assert found == pytest.approx(min(simple, low), rel=1e-3)


def test_two_levels_of_rings_are_taken_only_when_asked_for():
    cluster = load("dgx_a100", 64)
    for size in (1e4, 1e6, 1e8):
        assert run(cluster, "all_gather", size).algorithm == "ring"
    assert run(cluster, "all_gather", 1e6, "hierarchical").algorithm == "hierarchical"
