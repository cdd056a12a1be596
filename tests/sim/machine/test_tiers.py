"""Several tiers of switches inside a node: routes by hand and by networkx, times in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.builder.job import Job
from sim.engine import simulate
from sim.graph import Builder, Communication, Graph
from sim.machine.cluster import Cluster, load
from sim.machine.collectives import traffic
from sim.machine.hardware import Machine
from sim.machine.links import kind
from sim.machine.price import LinkLoad, price
from sim.perturbations.links import slowed
from sim.recipe.sections import PerturbationSection
from sim.runs.run import prepare
from sim.whatif import edited, link_names
from traincast.commands.parts.machine import describe, link_rows

NVLINK, PCIE, PORT = 160e9, 20e9, 12e9  # B/s each way, effective
PLAIN = {"p2p": {"simple": {"base": 0.0, "share": 1.0}}}  # nothing but the links
REST = """
[node]
gpus = 4
source = "a test's own, as what follows"
[node.nic]
from = "{nic}"
count = {nics}
bandwidth = "12 GB/s"
efficiency = 1.0
latency = "1 us"
[fabric]
kind = "switch"
latency = "0.3 us"
source = "as above"
"""
BRIDGES = """
base = "dgx_a100"
name = "bridges"
[node.link] # NVLink between the GPUs of a pair
gpus = 2
bandwidth = "200 GB/s"
efficiency = 0.8
latency = "0.2 us"
[node.tiers.pcie] # PCIe of each GPU to what joins all four
from = "gpu"
bandwidth = "25 GB/s"
efficiency = 0.8
latency = "0.5 us"
"""
TREE = """
base = "dgx_a100"
name = "tree"
[node.link] # each GPU to the PCIe switch of its pair
kind = "pcie"
gpus = 2
bandwidth = "25 GB/s"
efficiency = 0.8
latency = "0.5 us"
[node.tiers.root] # each PCIe switch to the node's root
kind = "pcie"
from = "link"
bandwidth = "20 GB/s"
efficiency = 1.0
latency = "0.4 us"
"""
TEXTS = {
    "bridges": (BRIDGES, "pcie", 1),
    "tree": (TREE, "link", 2),
    "bridges, NICs at GPUs": (BRIDGES, "gpu", 4),
    "two NICs at a switch": (TREE, "link", 4),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Cluster]:
    @cache
    def make(name: str, gpus: int = 8) -> Cluster:
        text, nic, nics = TEXTS[name]
        path = tmp_path_factory.mktemp("t") / "machine.toml"
        path.write_text(text + REST.format(nic=nic, nics=nics))
        return load(path, gpus)

    return make


def by_hand(name: str) -> nx.Graph[object]:
    """Two nodes of four GPUs with the latencies of the file, in microseconds."""
    out: nx.Graph[object] = nx.Graph()
    for gpu in range(8):
        if name == "bridges":
            out.add_edge(gpu, f"pair {gpu // 2}", weight=0.2)
            out.add_edge(gpu, f"pcie {gpu // 4}", weight=0.5)
            out.add_edge(f"pcie {gpu // 4}", f"nic {gpu // 4}", weight=1.0)
            out.add_edge(f"nic {gpu // 4}", "switch", weight=0.3)
        else:
            out.add_edge(gpu, f"pair {gpu // 2}", weight=0.5)
            out.add_edge(f"pair {gpu // 2}", f"root {gpu // 4}", weight=0.4)
            out.add_edge(f"pair {gpu // 2}", f"nic {gpu // 2}", weight=1.0)
            out.add_edge(f"nic {gpu // 2}", "switch", weight=0.3)
    return out


NAMES = {
    "bridges": {f"nvlink bridge {k // 2}.{k % 2}": f"pair {k}" for k in range(4)}
    | {"nic 0.0": "nic 0", "nic 1.0": "nic 1"},
    "tree": {"pcie switch 0.0": "pair 0", "pcie switch 0.1": "pair 1", "pcie switch 1.0": "pair 2"}
    | {"pcie switch 1.1": "pair 3", "nic 0.0": "nic 0", "nic 0.1": "nic 1", "nic 1.0": "nic 2"}
    | {"nic 1.1": "nic 3"},
}


@pytest.mark.parametrize("name", ["bridges", "tree"])
def test_routes_are_the_shortest_of_a_graph_made_by_hand(
    made: Callable[..., Cluster], name: str
) -> None:
    cluster, hand = made(name), by_hand(name)
    for a in range(8):
        for b in set(range(8)) - {a}:
            own = nx.restricted_view(hand, set(range(8)) - {a, b}, [])
            wanted = nx.dijkstra_path(own, a, b)
            links = [cluster.links[link] for link in cluster.route(a, b)]
            found = [a, *(end for _, end in links)]
            assert [NAMES[name].get(node, node) for node in found] == wanted
            seconds = nx.path_weight(own, wanted, "weight") * 1e-6
            assert cluster.latency(cluster.route(a, b)) == pytest.approx(seconds)


def seconds(cluster: Cluster, *messages: tuple[int, int], size: float = 1e9) -> list[float]:
    """When each of these messages ends that all start at once, without a protocol's constants."""
    cluster = replace(cluster, collectives=PLAIN)
    graph, loads = sent(cluster, messages, size)
    ends = simulate(graph, price(graph, cluster, loads)).end
    return [float(end) for end in ends[::2]]


def sent(
    cluster: Cluster, messages: tuple[tuple[int, int], ...], size: float
) -> tuple[Graph, dict[Communication, LinkLoad]]:
    b, loads = Builder(), {}
    for pair in messages:
        work = Communication("p2p", size, pair, "pp")
        b.join([b.add("message", rank, f"pp {pair}", work) for rank in pair])
        links, load, latency, algorithm = traffic(cluster, work)
        loads[work] = LinkLoad(
            tuple(links.tolist()), tuple(load.tolist()), size, latency, algorithm
        )
    return b.graph(), loads


TIMES = {  # seconds of 1 GB: the latencies of its links, and its bytes over the slowest
    ("bridges", "pair"): 2 * 0.2e-6 + 1e9 / NVLINK,
    ("bridges", "node"): 2 * 0.5e-6 + 1e9 / PCIE,
    ("bridges", "across"): 2 * (0.5e-6 + 1e-6 + 0.3e-6) + 1e9 / PORT,
    ("tree", "pair"): 2 * 0.5e-6 + 1e9 / PCIE,
    ("tree", "node"): 2 * (0.5e-6 + 0.4e-6) + 1e9 / PCIE,
    ("tree", "across"): 2 * (0.5e-6 + 1e-6 + 0.3e-6) + 1e9 / PORT,
}
PAIRS = {"pair": (0, 1), "node": (1, 2), "across": (1, 6)}


@pytest.mark.parametrize(("name", "where"), TIMES)
def test_one_message_takes_latency_and_its_bytes_over_the_slowest_link(
    made: Callable[..., Cluster], name: str, where: str
) -> None:
    assert seconds(made(name), PAIRS[where]) == pytest.approx([TIMES[name, where]], rel=1e-12)


def test_messages_share_what_they_both_cross(made: Callable[..., Cluster]) -> None:
    """Two from one pair to the other: the tree has one link up, bridges have one per GPU.

    To its neighbour and out of the node at once: over NVLink and PCIe, or both over one link.
    """
    both = (0, 2), (1, 3)
    assert seconds(made("bridges"), *both) == pytest.approx([1e-6 + 1e9 / PCIE] * 2)
    assert seconds(made("tree"), *both) == pytest.approx([1.8e-6 + 2e9 / PCIE] * 2)
    near, far = seconds(made("bridges"), (0, 1), (0, 4))
    assert (near, far) == pytest.approx((0.4e-6 + 1e9 / NVLINK, 3.6e-6 + 1e9 / PORT))
    near, far = seconds(made("tree"), (0, 1), (0, 4))
    assert (near, far) == pytest.approx((2e9 / PCIE, 2e9 / PCIE), rel=1e-4)


def test_two_gpus_below_one_switch_have_each_their_nic(made: Callable[..., Cluster]) -> None:
    cluster = made("two NICs at a switch")
    nics = [cluster.links[cluster.route(gpu, 4 + gpu)[1]] for gpu in range(4)]
    assert nics == [
        ("pcie switch 0.0", "nic 0.0"), ("pcie switch 0.0", "nic 0.1"),
        ("pcie switch 0.1", "nic 0.2"), ("pcie switch 0.1", "nic 0.3"),
    ]  # fmt: skip


FOLDED = {
    "tensor parallel in a pair": {"tp": 2, "dp": 4},
    "pipeline": {"tp": 2, "pp": 2, "dp": 2},
    "tensor parallel in a node": {"tp": 4, "dp": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", FOLDED)
@pytest.mark.parametrize("name", TEXTS)
def test_folded_steps_take_what_all_ranks_take(
    small_job: Callable[..., Job], made: Callable[..., Cluster], name: str, layout: str
) -> None:
    job, cluster = small_job(**FOLDED[layout]), made(name)
    lanes, *folded = prepare(job, cluster, fold=True)
    _, *whole = prepare(job, cluster, fold=False)
    assert lanes.axes
    assert simulate(*folded).seconds == pytest.approx(simulate(*whole).seconds, rel=1e-9)


@pytest.mark.parametrize("name", TEXTS)
def test_pcie_twice_as_fast_by_an_edit_is_that_of_a_topology(
    small_job: Callable[..., Job], made: Callable[..., Cluster], name: str
) -> None:
    """Both tiers of the tree answer to their kind, and no link of NVLink or of the fabric does."""
    cluster = made(name)
    job = small_job(tp=4, dp=2)
    _, graph, machine = prepare(job, cluster)
    _, after = edited(graph, machine, "link pcie * 2", cluster)
    of = [kind(cluster.network, link).kind for link in cluster.links]
    factor = {"pcie": 2.0, "nvlink": 1.0, "ib": 1.0}
    assert (after.capacity / machine.capacity).tolist() == [factor[one] for one in of]
    inside = [cluster.links[link] for pair in ((0, 1), (1, 2)) for link in cluster.route(*pair)]
    wanted = {"pcie", "nvlink"} if "bridges" in name else {"pcie"}
    assert {kind(cluster.network, link).kind for link in inside} == wanted


def test_the_times_of_messages_follow_an_edit_by_kind(made: Callable[..., Cluster]) -> None:
    """Bytes take half as long between pairs of a node; NVLink and NICs are as they were."""
    cluster = replace(made("bridges"), collectives=PLAIN)
    for where, share in {"pair": 1.0, "node": 0.5, "across": 1.0}.items():
        graph, loads = sent(cluster, (PAIRS[where],), 1e9)
        machine = price(graph, cluster, loads)
        changed = edited(graph, machine, "link pcie * 2", cluster)
        assert wire(*changed) == pytest.approx(share * wire(graph, machine))


def wire(graph: Graph, machine: Machine) -> float:
    return simulate(graph, machine).seconds - float(machine.latency.max())


@pytest.mark.parametrize(
    ("name", "table", "slower"),
    [
        ("bridges", {"link": "pcie"}, {"pair": 1, "node": 4, "across": 4}),
        ("bridges", {"link": "nvlink"}, {"pair": 4, "node": 1, "across": 1}),
        ("bridges", {"link": "gpu - pcie"}, {"pair": 1, "node": 4, "across": 2.4}),
        ("bridges", {"link": "gpu 1 - pcie 0"}, {"pair": 1, "node": 4, "across": 2.4}),
        ("bridges", {"link": "pcie", "rank": 3}, {"pair": 1, "node": 1, "across": 4}),
        ("tree", {"link": "pcie"}, {"pair": 4, "node": 4, "across": 4}),
        ("tree", {"link": "root - pcie switch"}, {"pair": 1, "node": 4, "across": 1}),
        ("tree", {"link": "ib"}, {"pair": 1, "node": 1, "across": 4}),
    ],
)
def test_slow_links_are_named_by_kind_by_tiers_and_by_ends(
    made: Callable[..., Cluster], name: str, table: dict[str, object], slower: dict[str, float]
) -> None:
    cluster = made(name)
    slow = slowed(cluster, [PerturbationSection(bandwidth=0.25, **table)])
    for where, factor in slower.items():
        route = list(cluster.route(*PAIRS[where]))
        found = cluster.capacity[route].min() / slow.capacity[route].min()
        assert found == pytest.approx(factor), where


def test_a_new_tier_is_a_table_of_the_file(tmp_path: Path) -> None:
    """Under a name that no code knows: it routes, and edits and perturbations know it by that."""
    text = BRIDGES.replace("tiers.pcie", "tiers.backplane")
    (tmp_path / "m.toml").write_text(text + REST.format(nic="gpu", nics=4))
    cluster = load(tmp_path / "m.toml", 8)
    route = cluster.route(1, 2)
    assert [cluster.links[k] for k in route] == [(1, "backplane 0"), ("backplane 0", 2)]
    assert {link_names(cluster)[k] for k in route} == {("backplane",)}
    slow = slowed(cluster, [PerturbationSection(link="backplane", bandwidth=0.5)])
    assert (slow.capacity / cluster.capacity)[list(route)].tolist() == [0.5, 0.5]
    assert slow.capacity.sum() == pytest.approx(cluster.capacity.sum() - 0.5 * 2 * 8 * PCIE)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from([*TEXTS]),
    flows=st.lists(
        st.tuples(st.integers(0, 15), st.integers(0, 15), st.floats(0.1, 9.0)),
        min_size=1, max_size=40,
    ),
)  # fmt: skip
def test_links_left_out_follow_from_those_that_stay(
    made: Callable[..., Cluster], name: str, flows: list[tuple[int, int, float]]
) -> None:
    cluster = made(name, 16)
    load_ = np.zeros(len(cluster.links))
    for a, b, size in flows:
        load_[list(cluster.route(a, b))] += size
    fill = load_ / cluster.capacity
    assert fill.max() <= fill[cluster.limiting].max(initial=0.0) * (1 + 1e-9)


def test_switches_add_up_only_where_one_of_nvlink_joins_all(
    made: Callable[..., Cluster], tmp_path: Path
) -> None:
    """NVLink SHARP's constants, passed on by a base, are of no use to pairs and PCIe."""
    reduced = Communication("all_reduce", 2.0**30, tuple(range(8)), "tp")
    plain = load("dgx_h100", 8)
    assert traffic(plain, reduced).algorithm == "nvls"
    for name, text in {
        "pairs": BRIDGES + '[node.nic]\nfrom = "gpu"\n',
        "two tiers": BRIDGES.replace('from = "gpu"', 'from = "link"\nkind = "nvlink"')
        + '[node.nic]\nfrom = "gpu"\n',
        "pcie": 'base = "dgx_h100"\n[node.link]\nkind = "pcie"\n',
    }.items():
        path = tmp_path / f"{name}.toml"
        path.write_text(text.replace("dgx_a100", "dgx_h100"))
        assert traffic(load(path, 8), reduced).algorithm == "ring"


def test_a_machine_shows_its_routes_within_and_across_a_node(made: Callable[..., Cluster]) -> None:
    shown = describe(made("bridges"))
    assert [shown["routes"][name]["bandwidth"] for name in shown["routes"]] == [NVLINK, PCIE, PORT]
    between = [link["between"] for link in shown["links"]]
    assert between == ["GPU - NVLink bridge", "GPU - PCIe", "PCIe - NIC", "NIC - switch"]
    assert [row[0] for row in link_rows(shown)[-3:]] == [
        "route in a node",
        "route to the last GPU of a node",
        "route to the next node",
    ]
    assert "across node" not in describe(load("dgx_a100", 16))["routes"]


FULL = BRIDGES + REST.format(nic="pcie", nics=1)
REFUSED = {
    "in the shadow of another": (("gpus = 2\n", ""),
        "tiers.pcie would carry nothing: link, which comes before it"),
    "nothing joins all": (('from = "gpu"', 'from = "gpu"\ngpus = 2'), "one of them must join all"),
    "not a part of a node": (("gpus = 2", "gpus = 3"), "must divide node.gpus = 4"),
    "fewer than below it": (('from = "gpu"', 'from = "link"\ngpus = 1'),
        "a multiple of the 2 GPUs that link joins"),
    "no such tier below": (('from = "gpu"', 'from = "plx"'), "must be 'gpu' or 'link', written"),
    "nothing below": (('from = "gpu"\n', ""), "lacks node.tiers.pcie.from"),
    "no place for NICs": (('from = "pcie"\n', ""), "it must be one of gpu, link, pcie"),
    "no such place for NICs": (('from = "pcie"', 'from = "plx"'), "there are gpu, link, pcie"),
    "NICs at too low a tier": (('from = "pcie"', 'from = "link"'), "join 2 GPUs each, but 4"),
    "a name of the network's": (("tiers.pcie", "tiers.leaf"), "take another"),
    "a name of two words": (("tiers.pcie", "tiers.'a - b'"), "must be a word of small letters"),
    "a kind of other links": (('from = "gpu"', 'from = "gpu"\nkind = "ib"'), "take another"),
    "an unknown key": (('from = "gpu"', 'from = "gpu"\nspeed = 3'), "key node.tiers.pcie.speed"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_machine_can_be_is_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    change, says = REFUSED[case]
    text = FULL.replace(*change, 1)
    assert text != FULL
    if "shadow" in case:
        text = text.replace('from = "pcie"', 'from = "gpu"')
    (tmp_path / "m.toml").write_text(text)
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the message is checked below
        load(tmp_path / "m.toml", 8)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[node]\ntiers = 3\n", "node.tiers = 3 must be a table"),
        ("[node.tiers]\npcie = 3\n", "node.tiers.pcie = 3 must be a table"),
        ("[node.nic]\nfrom = 3\n", "node.nic.from = 3 must be a word of small letters"),
        ("[node.link]\nkind = 'NVLink'\n", 'node.link.kind = "NVLink" must be a word'),
    ],
)
def test_tiers_of_another_form_are_refused_in_one_sentence(
    text: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "m.toml").write_text(f'base = "dgx_a100"\n{text}')
    with pytest.raises(ValueError, match=says):
        load(tmp_path / "m.toml", 8)
