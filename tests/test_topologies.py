"""The machines we ship: they load, hang together, name their sources; bad files say why."""

import tomllib

import networkx as nx
import pytest

import topologies
from sim.cluster import load

GOOD = """
base = "dgx_a100"
name = "mine"
[fabric]
kind = "fat_tree"
nodes_per_leaf = 2
oversubscription = 2.0
latency = "0.3 us"
max_nodes = 4
source = "mine"
"""


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("gpus", [1, 8, 12, 256])
@pytest.mark.parametrize("name", topologies.names())
def test_every_gpu_reaches_every_other(name, gpus):
    cluster = load(name, gpus)
    assert cluster.gpus == gpus
    assert nx.is_strongly_connected(cluster.network)


def sourced(table, within=False):
    """Whether each table that holds numbers, or text that begins with one, has a source."""
    within = within or bool(str(table.get("source", "")).strip())
    values = [value for key, value in table.items() if not isinstance(value, dict)]
    numbers = [v for v in values if str(v)[:1].isdigit()]
    inner = [sourced(v, within) for v in table.values() if isinstance(v, dict)]
    return (within or not numbers) and all(inner)


@pytest.mark.parametrize("name", topologies.names())
def test_every_number_has_a_source(name):
    raw = tomllib.loads(topologies.text(name))
    tables = [(key, table) for key, table in raw.items() if isinstance(table, dict)]
    tables += [
        (f"{key}.{inner}", below)
        for key, table in tables
        if key in ("gpu", "node")
        for inner, below in table.items()
        if isinstance(below, dict)
    ]
    assert [key for key, table in tables if not sourced(table)] == []
    assert not sourced({"bandwidth": "3 GB/s", "deep": {"x": 1}})


def test_selene_is_dgx_a100_in_another_fabric():
    assert load("selene", 64).gpu == load("dgx_a100", 64).gpu
    assert load("selene", 64).collectives == load("dgx_a100", 64).collectives


def test_published_figures():
    """A100 and H100 datasheets: 5 GEMM FLOP/s figures and the bytes per second of their memory."""
    a100, h100 = load("dgx_a100", 8).gpu, load("dgx_h100", 8).gpu
    assert (a100.peak["bf16"], a100.peak["tf32"], a100.memory_bandwidth) == (312e12, 156e12, 2039e9)
    assert (h100.peak["bf16"], h100.peak["fp8"], h100.sms) == (989.4e12, 1978.9e12, 132)
    assert a100.memory == h100.memory == 80 * 2**30


def test_plain_dgx_a100_gives_each_gpu_a_port_of_its_own():
    cluster = load("dgx_a100", 16)
    ports = [i for i, (u, _) in enumerate(cluster.links) if str(u).startswith("nic 0")]
    nominal = cluster.capacity[ports] / cluster.efficiency[ports]
    assert nominal.tolist() == pytest.approx([25e9] * 16)


def test_a_file_anywhere_on_top_of_a_shipped_one(written):
    cluster = load(written(GOOD), 32)
    assert cluster.name == "mine"
    assert cluster.gpu.name == "A100-SXM4-80GB"
    trunk = cluster.index["leaf 0", "spine 0"]
    assert cluster.capacity[trunk] == pytest.approx(2 * 8 * 25e9 * 0.96 / 2)


BAD = {
    "lack of a table": (lambda s: 'name = "x"', "lacks the table [gpu]"),
    "not TOML": (lambda s: "name = = 3", "is not TOML"),
    "unknown key": (lambda s: s.replace("oversubscription", "oversubscriptoin"), "did you mean"),
    "unknown table": (lambda s: s + "[fabrik]\nx = 1\n", "did you mean 'fabric'"),
    "unknown kind": (lambda s: s.replace("fat_tree", "torus"), "must be one of switch, rail"),
    "wrong unit": (lambda s: s.replace('"0.3 us"', '"0.3 GB"'), "of s, as text"),
    "bare number": (lambda s: s.replace('"0.3 us"', "0.3"), "of s, as text"),
    "zero": (lambda s: s.replace("nodes_per_leaf = 2", "nodes_per_leaf = 0"), "above 0"),
    "negative": (lambda s: s + '[node.link]\nbandwidth = "-300 GB/s"\n', "above 0"),
    "zero bandwidth": (lambda s: s + '[node.link]\nbandwidth = "0 GB/s"\n', "above 0"),
    "share above 1": (lambda s: s + "[node.nic]\nefficiency = 1.2\n", "at most 1"),
    "below 1:1": (lambda s: s.replace("= 2.0", "= 0.5"), "at least 1"),
    "odd NICs": (lambda s: s + "[node.nic]\ncount = 3\n", "must divide node.gpus"),
    "no leaf size": (lambda s: s.replace("nodes_per_leaf = 2", ""), "needs 'nodes_per_leaf'"),
    "tiers of one switch": (lambda s: s.replace("fat_tree", "switch"), "takes no"),
    "own base": (lambda s: s.replace('"dgx_a100"', '"./mine.toml"'), "own base"),
    "unknown base": (lambda s: s.replace('"dgx_a100"', '"dgx_a101"'), "there are dgx_a100"),
    "collective": (lambda s: s + '[collectives.p2p.simple]\nbase = "1 B"\n', "of s, as text"),
    "collective key": (lambda s: s + '[collectives.p2p.simple]\nbas = "1 s"\n', "'base'"),
    "group size": (lambda s: s + "[collectives.p2p.simple.share]\nall = 0.5\n", "GPUs per node"),
    "no table": (lambda s: s + "[collectives.p2p]\nsimple = 1\n", "must be a table"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_in_one_sentence(case, written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    change, says = BAD[case]
    path = written(change(GOOD))
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the message is checked below
        load("./mine.toml" if case == "own base" else path, 32)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value).strip()


@pytest.mark.parametrize("gpus", [0, -8, 33])
def test_a_topology_that_cannot_hold_so_many_says_how_many_it_can(written, gpus):
    with pytest.raises(ValueError, match=f"'mine' holds 1 to 32 GPUs, not {gpus}"):
        load(written(GOOD), gpus)


def test_unknown_names_and_missing_files():
    with pytest.raises(ValueError, match="no topology 'dgx'; there are dgx_a100"):
        load("dgx", 8)
    with pytest.raises(ValueError, match="cannot read the topology file"):
        load("nowhere/dgx.toml", 8)
