"""Collectives alone against the alpha-beta model, bytes against what each rank must send, SMPI."""

import json
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from sim.graph import Communication
from sim.machine.cluster import Cluster, Gpu, load
from sim.machine.collectives import ALGORITHMS, alone, traffic

ORACLE = Path(__file__).parents[4] / "shared" / "data" / "oracles" / "smpi_collectives.json"
GPU = Gpu("any", 1, 1.0, 1.0, {})
PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
KINDS = [(c, a) for c in PASSES for a in ("ring", "hierarchical")]


def star(n, bandwidth, latency):
    """n GPUs around one switch; ``latency`` of each link."""
    network = nx.DiGraph()
    for i in range(n):
        network.add_edge(i, "switch", bandwidth=bandwidth, latency=latency)
        network.add_edge("switch", i, bandwidth=bandwidth, latency=latency)
    return Cluster("star", GPU, network, n)


def bare(name, gpus):
    """A shipped machine without fitted constants: routes and capacities alone."""
    return replace(load(name, gpus), collectives={})


def run(cluster, collective, size, ranks, algorithm="auto"):
    return traffic(cluster, Communication(collective, size, tuple(ranks), "tp", algorithm))


def sent(cluster, found, rank):
    """Bytes that leave a GPU, over all its links."""
    loads = dict(zip(found.links.tolist(), found.bytes.tolist(), strict=True))
    return sum(load for link, load in loads.items() if cluster.links[link][0] == rank)


def received(cluster, found, rank):
    loads = dict(zip(found.links.tolist(), found.bytes.tolist(), strict=True))
    return sum(load for link, load in loads.items() if cluster.links[link][1] == rank)


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("collective", PASSES)
def test_ring_in_one_node(collective, size, n):
    """Passes of n - 1 rounds, each two links of 0.7 us and size / n bytes at 45 GB/s."""
    cluster = star(n, 45e9, 0.7e-6)
    seconds = PASSES[collective] * (n - 1) * (1.4e-6 + size / n / 45e9)
    assert alone(cluster, run(cluster, collective, size, range(n), "ring")) == pytest.approx(
        seconds
    )


def test_rings_over_nodes_share_all_nics():
    """4 nodes of 8: a NIC carries 1/8 of 2 (31/32) of the bytes; 2 (4 + 27) hops, 4 of them far."""
    cluster = bare("dgx_a100", 32)
    found = run(cluster, "all_reduce", 3e8, range(32), "ring")
    seconds = 2 * (27 * 0.3e-6 + 4 * 2.6e-6) + 2 * 31 / 32 * 3e8 / 8 / (25e9 * 0.96)
    assert alone(cluster, found) == pytest.approx(seconds)


def test_one_gpu_per_node_is_a_plain_ring():
    """3 ranks, all hops between nodes: 2 rounds of a third."""
    cluster = bare("dgx_a100", 24)
    found = run(cluster, "all_gather", 6e8, (1, 9, 17))
    assert alone(cluster, found) == pytest.approx(2 * (2.6e-6 + 2e8 / (25e9 * 0.96)))


def test_hierarchical_is_its_three_levels_one_after_another():
    """2 nodes of 4: 3 rounds inside, 2 across on a quarter of the bytes, 3 inside."""
    cluster = bare("dgx_a100", 16)
    ranks = (0, 1, 2, 3, 8, 9, 10, 11)
    inside = 3 * (0.3e-6 + 4e8 / 4 / 270e9)
    across = 2 * (2.6e-6 + 4e8 / 4 / 2 / 24e9)
    found = run(cluster, "all_reduce", 4e8, ranks, "hierarchical")
    assert alone(cluster, found) == pytest.approx(inside + across + inside)


@pytest.mark.parametrize("ranks", [range(8), range(32), (0, 1, 8, 9), (3, 11, 19), (1, 2, 3, 9)])
@pytest.mark.parametrize("collective", PASSES)
def test_ring_every_rank_sends_its_share(collective, ranks):
    """(n - 1) / n of the buffer in each pass, and as much comes in (the ring's lower bound)."""
    cluster = bare("selene", 32)
    found = run(cluster, collective, 7e8, ranks, "ring")
    share = PASSES[collective] * (len(ranks) - 1) / len(ranks) * 7e8
    for rank in range(32):
        assert sent(cluster, found, rank) == pytest.approx(share if rank in ranks else 0)
        assert received(cluster, found, rank) == pytest.approx(share if rank in ranks else 0)


@pytest.mark.parametrize("collective", PASSES)
def test_hierarchical_every_rank_sends_its_share(collective):
    """(k - 1) / k inside and (m - 1) / m of a k-th across, together (mk - 1) / mk."""
    cluster = bare("selene", 32)
    found = run(cluster, collective, 7e8, range(32), "hierarchical")
    share = PASSES[collective] * 31 / 32 * 7e8
    assert [sent(cluster, found, rank) for rank in range(32)] == pytest.approx([share] * 32)


@pytest.mark.parametrize("ranks", [(5, 0, 3), (9, 1, 0, 8), tuple(range(16)), (12, 0, 1)])
def test_broadcast_reaches_every_rank_once(ranks):
    cluster = bare("dgx_a100", 16)
    found = run(cluster, "broadcast", 3e6, ranks)
    got = {rank: received(cluster, found, rank) for rank in ranks}
    assert got.pop(ranks[0]) == 0
    assert list(got.values()) == pytest.approx([3e6] * (len(ranks) - 1))


def test_broadcast_takes_its_chain():
    """2 nodes of 4: 6 hops inside, 1 across; each NIC carries a quarter of the buffer."""
    cluster = bare("dgx_a100", 16)
    found = run(cluster, "broadcast", 8e8, (0, 1, 2, 3, 8, 9, 10, 11))
    assert found.latency == pytest.approx(6 * 0.3e-6 + 2.6e-6)
    assert alone(cluster, found) == pytest.approx(found.latency + 2e8 / 24e9)


def test_message_between_two_ranks():
    cluster = bare("dgx_h100", 16)
    found = run(cluster, "p2p", 5e6, (2, 10))
    assert found.links.tolist() == sorted(cluster.route(2, 10))
    assert set(found.bytes.tolist()) == {5e6}
    assert alone(cluster, found) == pytest.approx(2.6e-6 + 5e6 / (50e9 * 0.96))


def test_two_gpus_on_one_nic_both_load_it(tmp_path):
    path = tmp_path / "four.toml"
    path.write_text('base = "dgx_a100"\nname = "four"\n[node.nic]\ncount = 4\nsource = "made up"\n')
    cluster = replace(load(path, 16), collectives={})
    found = run(cluster, "all_gather", 8e8, range(16), "ring")
    loads = dict(zip(found.links.tolist(), found.bytes.tolist(), strict=True))
    assert loads[cluster.index["nic 0.0", "switch"]] == pytest.approx(2 * 15 / 16 * 1e8)
    assert loads[cluster.index[0, "nic 0.0"]] == pytest.approx(15 / 16 * 1e8)


@pytest.mark.parametrize(("collective", "algorithm"), KINDS)
def test_links_are_sorted_and_loaded(collective, algorithm):
    found = run(load("selene", 64), collective, 1e6, range(64), algorithm)
    assert found.algorithm == algorithm
    assert (found.links.dtype, found.bytes.dtype) == (np.int32, np.float64)
    assert (np.diff(found.links) > 0).all()
    assert (found.bytes > 0).all()


@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
def test_auto_is_the_fastest(size):
    cluster = load("dgx_a100", 64)
    times = [
        alone(cluster, run(cluster, "all_reduce", size, range(64), algorithm))
        for algorithm in ("ring", "tree")
    ]
    best = run(cluster, "all_reduce", size, range(64))
    assert alone(cluster, best) == min(times)
    assert best.algorithm == {1e3: "tree", 1e6: "ring", 1e9: "ring"}[size]


def test_fitted_constants_enter_as_stated():
    """Two GPUs of a DGX A100, above and below where protocols cross: by hand from the table."""
    cluster = load("dgx_a100", 8)
    simple = lambda size: 34.4e-6 + 0.09e-6 + 0.3e-6 + size / 2 / (300e9 * 0.496)  # noqa: E731
    low = lambda size: 9.2e-6 + 0.73e-6 + 0.3e-6 + size / 2 / (300e9 * 0.159)  # noqa: E731
    for size, seconds in ((1e8, simple(1e8)), (1e5, low(1e5))):
        found = run(cluster, "all_gather", size, (0, 1))
        assert alone(cluster, found) == pytest.approx(seconds)
    assert simple(1e8) < low(1e8)
    assert low(1e5) < simple(1e5)


def test_three_gpus_lie_between_two_and_four():
    """The shares of all-gathers on 2 and 4 GPUs are 0.496 and 0.596: 0.546 for 3."""
    cluster = load("dgx_a100", 8)
    seconds = 34.4e-6 + 2 * 0.39e-6 + 2e8 / (300e9 * 0.546)
    assert alone(cluster, run(cluster, "all_gather", 3e8, (0, 1, 2))) == pytest.approx(seconds)


def test_recorded_all_reduce():
    """64 MiB over 8 A100: 603 us in a recorded Megatron step, which the constants have not seen."""
    cluster = load("dgx_a100", 8)
    assert alone(cluster, run(cluster, "all_reduce", 2**26, range(8))) == pytest.approx(
        603e-6, rel=0.05
    )


def test_in_switch_all_reduce_on_h100():
    """Up and down (1 + 1/8) of the buffer; 484 GB/s bus bandwidth in nccl-tests' convention."""
    cluster = load("dgx_h100", 16)
    found = run(cluster, "all_reduce", 2**30, range(8))
    assert found.algorithm == "nvls"
    assert found.bytes.tolist() == [2**30 * 9 / 8] * 16
    bus = 2 * 7 / 8 * 2**30 / (alone(cluster, found) - 196.3e-6)
    assert bus == pytest.approx(484e9, rel=0.01)
    with pytest.raises(ValueError, match="nvls needs all 8 GPUs"):
        run(cluster, "all_reduce", 2**30, range(4), "nvls")


def test_nothing_to_do():
    cluster = load("dgx_a100", 8)
    for found in (run(cluster, "all_reduce", 1e9, (3,)), run(cluster, "p2p", 0.0, (0, 1))):
        assert alone(cluster, found) == 0
        assert len(found.links) == 0


@pytest.mark.parametrize(
    ("collective", "ranks", "algorithm", "says"),
    [
        ("all_to_some", (0, 1), "auto", "there are all_reduce"),
        ("all_reduce", (0, 1), "torus", "there are auto, ring, hierarchical"),
        ("all_reduce", (0, 1, 0), "auto", "distinct ranks"),
        ("all_reduce", (0, 1, 8), "hierarchical", r"the group has \[2, 1\]"),
        ("p2p", (0, 1, 2), "auto", "a source and a target"),
        ("all_gather", (0, 99), "auto", "rank 99 is not among the 16"),
    ],
)
def test_what_cannot_be_done_says_so(collective, ranks, algorithm, says):
    with pytest.raises(ValueError, match=says):
        run(load("dgx_a100", 16), collective, 1e6, ranks, algorithm)


@pytest.mark.skipif(not ORACLE.exists(), reason="needs ../shared/data/oracles")
def test_rings_agree_with_smpi():
    known = {("allreduce", "lr"): "all_reduce", ("allgather", "ring"): "all_gather"}
    rows = [r for r in json.loads(ORACLE.read_text())["results"] if (r["coll"], r["algo"]) in known]
    assert len(rows) > 10
    for row in rows:
        cluster = star(row["n"], row["link_Bps"], row["latency_s"] / 2)
        collective = known[row["coll"], row["algo"]]
        found = run(cluster, collective, row["bytes"], range(row["n"]), "ring")
        assert alone(cluster, found) == pytest.approx(row["smpi_s"], rel=1e-3)


def test_each_collective_has_an_algorithm_by_every_name():
    assert {name for known in ALGORITHMS.values() for name in known} == {
        "ring", "hierarchical", "nvls", "nvls_tree", "tree", "direct", "exchange", "pairwise",
        "two_level", "copy", "pipeline",
    }  # fmt: skip


def test_an_exchange_is_one_hop_of_a_piece_and_never_chosen_by_itself():
    """Four ranks and a buffer of 3 pieces: each sends one to the next, at p2p's speed."""
    cluster = load("dgx_h100", 8)
    whole = 3 * 48e6
    one = Communication("all_gather", whole, (0, 1, 2, 3), "tp", "exchange")
    step = traffic(cluster, one)
    hop = traffic(cluster, Communication("p2p", whole * 3 / 4, (0, 1), "pp"))
    assert alone(cluster, step) == pytest.approx(alone(cluster, hop), rel=1e-12)
    assert sorted(set(step.bytes.tolist())) == [whole * 3 / 4]
    assert traffic(cluster, one._replace(algorithm="auto")).algorithm != "exchange"
    piece = one._replace(collective="reduce_scatter", algorithm="pipeline")  # the same on links
    assert alone(cluster, traffic(cluster, piece)) == alone(cluster, step)
    assert traffic(cluster, piece._replace(algorithm="auto")).algorithm != "pipeline"


def test_copy_engines_bring_each_rank_every_piece_and_only_when_asked():
    """Four ranks and a buffer of 4 pieces: each sends its own three times, at p2p's speed."""
    cluster = load("dgx_h100", 16)
    found = run(cluster, "all_gather", 4e8, (0, 1, 2, 3), "copy")
    for rank in range(4):
        assert sent(cluster, found, rank) == received(cluster, found, rank) == 3e8
    base, share = cluster.collectives["p2p"]["simple"]["base"], 0.797
    expected = base + 3 * cluster.latency(cluster.route(0, 1)) + 3e8 / (450e9 * share)
    assert alone(cluster, found) == pytest.approx(expected, rel=1e-9)
    assert run(cluster, "all_gather", 4e8, (0, 1, 2, 3)).algorithm != "copy"
    between = [run(cluster, "all_gather", 4e8, (0, 8), name) for name in ("copy", "auto")]
    assert between[0].algorithm == between[1].algorithm
    assert between[0].latency == between[1].latency


A2A_GROUPS = [range(8), range(32), (0, 1, 8, 9), (3, 11, 19), (1, 2, 3, 9), (0, 9, 18)]


@pytest.mark.parametrize("ranks", A2A_GROUPS)
def test_pairwise_all_to_all_every_rank_sends_all_but_its_own_piece(ranks):
    """(n - 1) / n of the buffer goes out of each GPU and as much comes in: the least there is."""
    cluster = bare("selene", 32)
    found = run(cluster, "all_to_all", 7e8, ranks, "pairwise")
    share = (len(ranks) - 1) / len(ranks) * 7e8
    for rank in range(32):
        assert sent(cluster, found, rank) == pytest.approx(share if rank in ranks else 0)
        assert received(cluster, found, rank) == pytest.approx(share if rank in ranks else 0)


def test_two_level_all_to_all_crosses_nodes_once():
    """4 nodes of 8: 7/8 of the buffer to mates, then 3/4 of what was gathered along the rail."""
    cluster = bare("dgx_a100", 32)
    found = run(cluster, "all_to_all", 8e8, range(32), "two_level")
    assert [sent(cluster, found, rank) for rank in range(32)] == pytest.approx(
        [(7 / 8 + 3 / 4) * 8e8] * 32
    )
    loads = dict(zip(found.links.tolist(), found.bytes.tolist(), strict=True))
    across = [loads.get(cluster.index[f"nic 0.{i}", "switch"], 0.0) for i in range(8)]
    assert across == pytest.approx([3 / 4 * 8e8] * 8)


def test_all_to_all_by_hand():
    """4 GPUs of one node at 270 GB/s; 2 nodes of 4 at 24 GB/s per NIC; one level after another."""
    cluster = bare("dgx_a100", 16)
    inside = 0.3e-6 + 3 / 4 * 4e8 / 270e9
    found = run(cluster, "all_to_all", 4e8, range(4))
    assert (found.algorithm, alone(cluster, found)) == ("pairwise", pytest.approx(inside))
    both = (0, 1, 2, 3, 8, 9, 10, 11)
    straight = 2.6e-6 + 4 / 8 * 4e8 / 24e9
    found = run(cluster, "all_to_all", 4e8, both, "pairwise")
    assert alone(cluster, found) == pytest.approx(straight)
    rails = inside + 2.6e-6 + 1 / 2 * 4e8 / 24e9
    found = run(cluster, "all_to_all", 4e8, both, "two_level")
    assert alone(cluster, found) == pytest.approx(rails)
    assert run(cluster, "all_to_all", 4e8, both).algorithm == "pairwise"


@pytest.mark.parametrize("ranks", [(0, 1), (2, 10), (0, 9)])
@pytest.mark.parametrize("name", ["dgx_a100", "dgx_h100"])
def test_two_ranks_exchange_as_two_messages_do(name, ranks):
    """Links work both ways at once, so each way is a p2p of half the buffer."""
    cluster = load(name, 16)
    cluster = replace(cluster, collectives={"p2p": cluster.collectives["p2p"]})  # no others' fits
    found = run(cluster, "all_to_all", 6e6, ranks)
    ways = [run(cluster, "p2p", 3e6, way) for way in (ranks, ranks[::-1])]
    assert alone(cluster, found) == pytest.approx(alone(cluster, ways[0]), rel=1e-12)
    assert set(found.links.tolist()) == {link for way in ways for link in way.links.tolist()}


@pytest.mark.parametrize("ranks", [(0, 1, 2), (0, 8), (0, 1, 8, 9)])
def test_a_ring_exchange_passes_the_whole_buffer_on(ranks):
    """Each rank sends its buffer to the next one, in the time of the longest of these messages."""
    cluster = load("dgx_h100", 16)
    found = run(cluster, "ring_exchange", 5e7, ranks)
    ends = zip(ranks, [*ranks[1:], ranks[0]], strict=True)
    slowest = max(alone(cluster, run(cluster, "p2p", 5e7, pair)) for pair in ends)
    assert alone(cluster, found) == pytest.approx(slowest, rel=1e-12)
    for rank in ranks:
        assert sent(cluster, found, rank) == received(cluster, found, rank) == 5e7


def test_all_to_all_of_measured_sizes():
    """16 to 512 MiB over 2 to 8 GPUs, NCCL 2.29.2 on H100 and 2.27.3 on A100: 6 % on average."""
    tables = pytest.importorskip("traces.calibration.tables")
    pytest.importorskip("aiconfigurator_core")
    for name, folder in (("dgx_h100", "h100_sxm"), ("dgx_a100", "a100_sxm")):
        cluster, rows = load(name, 8), tables.nccl_rows(tables.installed() / folder, "alltoall")
        errors = [
            alone(cluster, run(cluster, "all_to_all", size, range(int(gpus)))) / seconds - 1
            for gpus, size, seconds in zip(*rows, strict=True)
            if size >= 2**24
        ]
        assert len(errors) == 18
        assert np.abs(errors).mean() < 0.06
        assert abs(np.mean(errors)) < 0.02
