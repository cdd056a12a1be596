"""The machines we ship: they load, hang together, name their sources; bad files say why."""

import functools
import tomllib

import networkx as nx
import pytest
import tomli_w

import topologies
from sim.machine import kernels, topology
from sim.machine.cluster import load
from sim.machine.declared import fitted
from tests.recipes import ran

LAYER = {"preset": "gpt-22b", "layers": 1, "attention": "flash"}
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
    assert nx.is_strongly_connected(cluster.graph)


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
    assert (a100.memory, h100.memory) == (80 * 2**30, 79.65 * 2**30)


DATASHEETS = {  # GB/s of memory, GiB of it, TFLOP/s in bf16, GB/s of NVLink and network each way
    "dgx_a100": (2039, 80, 312, 300, 25),
    "dgx_a100_40gb": (1555, 40, 312, 300, 25),
    "dgx_a800": (2039, 80, 312, 200, 25),
    "dgx_b200": (8000, 179, 2250, 900, 50),
    "dgx_h100": (3352, 79.65, 989.4, 450, 50),
    "dgx_h200": (4800, 140.4, 989.4, 450, 50),
    "dgx_h800": (3352, 79.65, 989.4, 200, 50),
    "h100_96gb": (2400, 96, 989.4, 450, 50),
    "selene": (2039, 80, 312, 300, 25),
    "a100_pcie": (1935, 80, 312, 31.5, 25),
    "alps_gh200": (4000, 95.577, 989.4, 450, 25),
    "aws_p4d": (1555, 40, 312, 300, 12.5),
    "aws_p5": (3352, 79.65, 989.4, 450, 50),
    "aws_p5en": (4800, 140.4, 989.4, 450, 50),
    "azure_nd_h100_v5": (3352, 79.65, 989.4, 450, 50),
    "dgx1_v100": (900, 31.748, 15.7, 150, 12.5),
    "dgx_b300": (7750, 268.594, 2250, 900, 100),
    "gb200_nvl4": (8000, 185.030, 2500, 900, 50),
    "gb200_nvl72": (8000, 185.030, 2500, 900, 50),
    "h100_pcie_2nic": (2000, 79.65, 756, 300, 50),
    "h100_pcie_4nic": (2000, 79.65, 756, 300, 50),
    "hgx_h100_2nic": (3352, 79.65, 989.4, 450, 50),
    "hgx_h100_4nic": (3352, 79.65, 989.4, 450, 50),
    "jean_zay_a100": (2039, 80, 312, 300, 12.5),
    "l40s_pcie": (864, 44.988, 362.05, 31.5, 50),
    "mi300x": (5300, 192, 1307.4, 448, 50),
    "mi355x": (8000, 288, 2516.6, 537.6, 50),
    "narval": (1555, 40, 312, 300, 12.5),
    "roce_h100": (3352, 79.65, 989.4, 450, 50),
    "rtx4090": (1008, 23.98828, 165.2, 31.5, 12.5),
}


@pytest.mark.parametrize("name", DATASHEETS)
def test_datasheet_figures(name):
    """A machine needs no line in this table: its file alone is enough."""
    memory, gib, bf16, link, port = DATASHEETS[name]
    cluster = load(name, 2 * load(name, 1).gpus_per_node)
    assert cluster.gpu.memory_bandwidth == memory * 1e9
    assert cluster.gpu.memory == pytest.approx(gib * 2**30, rel=1e-5)
    assert cluster.gpu.peak["bf16"] == bf16 * 1e12
    nominal = cluster.capacity / cluster.efficiency
    assert nominal[cluster.index[0, cluster.ways[0][0][1]]] == pytest.approx(link * 1e9)
    way = cluster.ways[0][-1]
    nic = next(k for k, node in enumerate(way) if str(node).startswith("nic "))
    assert nominal[cluster.index[way[nic - 1], way[nic]]] == pytest.approx(port * 1e9)


def test_an_h800_moves_what_deepseek_says():
    """160 GB/s over NVLink, 3.2 times the 50 GB/s of a port."""
    cluster = load("dgx_h800", 16)
    assert cluster.capacity[cluster.index[0, "nvswitch 0"]] == pytest.approx(160e9)


@pytest.mark.slow
@pytest.mark.parametrize("name", topologies.names())
def test_a_small_job_runs_on_every_machine(name):
    assert ran(LAYER, 2, topology=name, tp=8, dp=2).summary["step_time_s"] > 0


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


ON_A100 = 'base = "dgx_a100"\nname = "mine"\n[fabric]\nlatency = "1 us"\nsource = "mine"\n'
DELAY = '"1 us"'
TORUS = ON_A100 + 'kind = "torus"\nshape = "2x4"\nlink_bandwidth = "5 GB/s"\n'
DRAGONFLY = ON_A100 + (
    'kind = "dragonfly"\nnodes_per_leaf = 2\nleaves_per_group = 2\n'
    'local_bandwidth = "5 GB/s"\nglobal_bandwidth = "9 GB/s"\n'
)

EVERY_GEMM = "".join(
    f"{key} = {DELAY if key in ('fixed', 'derating_seconds') else 1}\n"
    for key in kernels.GemmConstants._fields
)

BAD = {
    "lack of a table": ('name = "x"', "lacks gpu; base"),
    "not TOML": ("name = = 3", "is not TOML"),
    "unknown key": (GOOD.replace("oversubscription", "oversubscriptoin"), "did you mean"),
    "unknown table": (GOOD + "[fabrik]\nx = 1\n", "unknown key fabrik; did you mean fabric?"),
    "unknown kind": (GOOD.replace("fat_tree", "ring"), "kind = \"ring\" must be 'switch', 'rail'"),
    "wrong unit": (GOOD.replace('"0.3 us"', '"0.3 GB"'), "of s, as text"),
    "bare number": (GOOD.replace('"0.3 us"', "0.3"), "of s, as text"),
    "zero": (GOOD.replace("nodes_per_leaf = 2", "nodes_per_leaf = 0"), "at least 1"),
    "negative": (GOOD + '[node.link]\nbandwidth = "-300 GB/s"\n', "above 0"),
    "zero bandwidth": (GOOD + '[node.link]\nbandwidth = "0 GB/s"\n', "above 0"),
    "share above 1": (GOOD + "[node.nic]\nefficiency = 1.2\n", "at most 1"),
    "below 1:1": (GOOD.replace("= 2.0", "= 0.5"), "at least 1"),
    "odd NICs": (GOOD + "[node.nic]\ncount = 3\n", "must divide node.gpus"),
    "no leaf size": (GOOD.replace("nodes_per_leaf = 2", ""), "needs 'nodes_per_leaf'"),
    "tiers of one switch": (GOOD.replace("fat_tree", "switch"), "takes no"),
    "leaves of a torus": (GOOD.replace("fat_tree", "torus"), "'torus' takes no nodes_per_leaf"),
    "no shape": (TORUS.replace('shape = "2x4"', ""), "'torus' needs 'shape'"),
    "flat shape": (TORUS.replace("2x4", "2x0"), "the nodes along each dimension"),
    "number as shape": (TORUS.replace('"2x4"', "8"), "shape = 8 must be the nodes"),
    "huge shape": (TORUS.replace("2x4", "999x999"), "more than 131,072 nodes"),
    "no neighbours": (TORUS.replace('link_bandwidth = "5 GB/s"', ""), "'link_bandwidth'"),
    "bare link": (TORUS.replace('"5 GB/s"', "5"), "of B/s, as text"),
    "no links between groups": (DRAGONFLY.replace('global_bandwidth = "9 GB/s"', ""),
        "'dragonfly' needs 'global_bandwidth'"),
    "no links in a group": (DRAGONFLY.replace('local_bandwidth = "5 GB/s"', ""),
        "'dragonfly' needs 'local_bandwidth'"),
    "empty group": (DRAGONFLY.replace("per_group = 2", "per_group = 0"), "at least 1"),
    "spines of a dragonfly": (DRAGONFLY + "nodes_per_spine = 4\n", "takes no nodes_per_sp"),
    "rails of a fat tree": (GOOD + "rails = 2\n", "'fat_tree' takes no rails"),
    "odd rails": (GOOD.replace("fat_tree", "rail") + "rails = 3\n",
        "rails is 3; it must divide node.nic.count = 8"),
    "half a leaf": (GOOD + "nodes_per_spine = 3\n",
        "nodes_per_spine is 3; it must be a multiple of fabric.nodes_per_leaf = 2"),
    "spine below 1:1": (GOOD + "spine_oversubscription = 0.5\n", "at least 1"),
    "own base": (GOOD.replace('"dgx_a100"', '"./mine.toml"'), "own base"),
    "unknown base": (GOOD.replace('"dgx_a100"', '"dgx_a101"'), "did you mean dgx_a100?"),
    "collective": (GOOD + '[collectives.p2p.simple]\nbase = "1 B"\n', "of s, as text"),
    "collective key": (GOOD + '[collectives.p2p.simple]\nbas = "1 s"\n',
        "did you mean collectives.p2p.simple.base?"),
    "group size": (GOOD + "[collectives.p2p.simple.share]\nall = 0.5\n", "GPUs per node"),
    "no collectives": ("collectives = 3\n" + GOOD, "must be a table, [collectives]"),
    "no protocols": (GOOD + "[collectives]\np2p = 3\n", "p2p = 3 must be a table"),
    "half a protocol": (GOOD + '[collectives.p2p.ll]\nbase = "1 s"\n',
        "lacks collectives.p2p.ll.share"),
    "no sizes": (GOOD + "[collectives.p2p.simple]\nshare = {}\n", "simple.share is empty"),
    "odd size": (GOOD + "[collectives.p2p.simple]\nshare = { ² = 1 }\n".replace("²", '"²"'),
        "GPUs per node"),
    "negative delay": (GOOD.replace('"0.3 us"', '"-3 us"'), "a number of at least 0"),
    "tiny bandwidth": (GOOD + '[node.link]\nbandwidth = "1e-300 B/s"\n', "(from 1000)"),
    "huge peak": (GOOD + '[gpu.peak]\nbf16 = "1e300 FLOP/s"\n', "at most 1e+21"),
    "tiny share": (GOOD + "[node.link]\nefficiency = 1e-300\n", "at least 1e-06"),
    "huge count": (GOOD + f"[node]\ngpus = {10**30}\n", "at most 1,000,000"),
    "no text": (GOOD.replace('"mine"\n[', "3\n["), "name = 3 must be text"),
    "number as base": (GOOD.replace('"dgx_a100"', "3"), "base = 3 must be text"),
    "deep": ("x = " + "[" * 99999, "too deeply to be read"),
    "gemm share": (GOOD + "[gpu.gemm.bf16]\nmemory = 0\n",
        "gpu.gemm.bf16.memory = 0 must be at least 1e-06"),
    "gemm text": (GOOD + '[gpu.gemm.bf16]\nramp = "x"\n', 'ramp = "x" must be a number'),
    "gemm nan": (GOOD + "[gpu.gemm.bf16]\nsplit = nan\n", "split = NaN must be a finite number"),
    "gemm delay": (GOOD + "[gpu.gemm.bf16]\nfixed = 3\n",
        "fixed = 3 must be a number of at least 0"),
    "no window": (GOOD + '[gpu.gemm.bf16]\nderating_seconds = "0 s"\n',
        'derating_seconds = "0 s" must be a number above 0 (from 1e-06)'),
    "exponent": (GOOD + "[gpu.power]\nexponent = 11\n", "at most 10"),
    "power of memory": (GOOD + "[gpu.power]\nmemory = 1e6\n", "at most 10"),
    "power of attention": (GOOD + "[gpu.power]\nattention = nan\n",
        "attention = NaN must be a finite"),
    "cap of nothing": (GOOD + '[gpu.power]\ncap = "0 W"\n', "(from 1) and at most 100000"),
    "cap below idle": (GOOD + '[gpu.power]\ncap = "9 W"\n', "it must be below cap and"),
    "gemm key": (GOOD + "[gpu.gemm.bf16]\nrampe = 3\n", "did you mean gpu.gemm.bf16.ramp?"),
    "gemm dtype": (GOOD + "[gpu.gemm.bf17]\nramp = 3\n", "did you mean gpu.gemm.bf16?"),
    "gemm lacks": (GOOD + "[gpu.gemm.fp32]\nramp = 3\n",
        'lacks gpu.gemm.fp32.tile_256x128; base = "dgx_a100"'),
    "gemm without a peak": (GOOD + "[gpu.gemm.fp8]\n" + EVERY_GEMM,
        "gpu.gemm.fp8 is given, and peak.fp8 is not"),
    "gemm no table": (GOOD + "[gpu]\ngemm = 3\n", "gemm = 3 must be a table"),
    "attention": (GOOD + "[gpu.attention]\nforward = 1.5\n", "at most 1"),
    "attention table": (GOOD + "[gpu.attention.flash2]\nforward = { 64 = 1.5 }\n",
        "gpu.attention.flash2.forward.64 = 1.5 must be at most 1"),
    "attention head dimension": (GOOD + "[gpu.attention.flash2]\nforward = { d64 = 0.5 }\n",
        'has the key "d64"; it must be a head dimension'),
    "attention kernel": (GOOD + "[gpu.attention.cudnm]\nforward = 0.5\n",
        "unknown key gpu.attention.cudnm; did you mean gpu.attention.cudnn?"),
    "attention kernel lacks": (GOOD + "[gpu.attention.flash3]\nforward = 0.5\n",
        "lacks gpu.attention.flash3.backward"),
    "attention choice": (GOOD + "[gpu.attention]\nflash = 'flash3'\n",
        'gpu.attention.flash = "flash3" must be one of triton, flash2, cudnn'),
    "list as choice": (GOOD + "[gpu.attention]\nflash = []\n", "flash = [] must be"),
    "head dimension twice": (GOOD + "[gpu.attention.flash2]\nforward = { 064 = 0.5 }\n",
        'has the key "064"; it must be a head dimension'),
    "digits in groups": (GOOD.replace('"0.3 us"', '"1_0 us"'), '= "1_0 us" must be a number'),
    "other digits": (GOOD.replace('"0.3 us"', '"٣ us"'), '= "٣ us" must be a number'),
    "huge groups": (DRAGONFLY.replace("per_group = 2", "per_group = 65536"),
        "a dragonfly of 1 groups of 65,536 routers has 2,147,450,880 cables, and 500,000 can be"),
    "attention part": (GOOD + "[gpu.attention]\nquantisation = -1\n", "at least 0"),
    "memory kernel": (GOOD + "[gpu.memory_kernels]\nnorm = true\n", "norm = true must be a number"),
    "fitted table": (GOOD + "[gpu.gemms]\nx = 1\n", "did you mean gpu.gemm?"),
    "SMs": (GOOD + "[gpu.communication.sms]\np2p = 109\n", "from 0 to gpu.sms = 108"),
    "part of an SM": (GOOD + "[gpu.communication.sms]\np2p = 1.5\n", "must be a whole"),
    "HBM": (GOOD + "[gpu.communication.hbm]\np2p = inf\n", "hbm.p2p = Infinity must be"),
    "no HBM": (GOOD + "[gpu.communication]\nhbm = 3\n", "hbm = 3 must be a table"),
    "number as origin": (GOOD + "[collectives]\nfrom = 3\n", "from = 3 must be text"),
    "no table": (GOOD + "[collectives.p2p]\nsimple = 1\n", "must be a table"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_in_one_sentence(case, written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, says = BAD[case]
    path = written(text)
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the message is checked below
        load("./mine.toml" if case == "own base" else path, 32)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value).strip()


def test_a_file_without_a_name_is_called_after_itself_and_not_its_base(written):
    path = written('base = "dgx_a100"\n')
    assert topology.read(path)["name"] == path.stem
    assert topology.read("dgx_a800")["name"] == "dgx_a800"


def test_another_kind_of_fabric_keeps_of_the_base_what_it_takes(written):
    """Not what means nothing in it: leaves and spines of a rail fabric, nor its size."""
    spec = topology.read(written(TORUS.replace("dgx_a100", "selene")))
    assert spec["fabric"].keys() == {"kind", "shape", "link_bandwidth", "latency"}
    with pytest.raises(ValueError, match="'mine' holds 1 to 64 GPUs, not 65"):
        load(written(TORUS), 65)


@pytest.mark.parametrize("gpus", [0, -8, 33])
def test_a_topology_that_cannot_hold_so_many_says_how_many_it_can(written, gpus):
    with pytest.raises(ValueError, match=f"'mine' holds 1 to 32 GPUs, not {gpus}"):
        load(written(GOOD), gpus)


def alone(*left_out: str) -> str:
    """The text of dgx_a100 without some of its tables."""
    raw = tomllib.loads(topologies.text("dgx_a100"))
    for path in left_out:
        *outer, last = path.split(".")
        functools.reduce(dict.__getitem__, outer, raw).pop(last)
    return tomli_w.dumps(raw)


@pytest.mark.parametrize(
    "table",
    [
        "gpu.gemm", "gpu.attention", "gpu.memory_kernels", "gpu.communication",
        "collectives.all_reduce", "collectives",
    ],
)  # fmt: skip
def test_a_job_on_a_topology_without_constants_says_what_would_do(table, written):
    path = written(alone(table))
    assert load(path, 2).gpus == 2
    with pytest.raises(ValueError, match=rf'no table \[{table}.*base = "dgx_a100", or'):
        ran(LAYER, 1, topology=path, tp=2)


@pytest.mark.parametrize("key", ["sms.p2p", "hbm.all_gather", "sms"])
def test_a_part_of_a_table_that_is_missing_is_named(key, written):
    with pytest.raises(ValueError, match=rf'lacks gpu.communication.{key}.*; base = "dgx_a100"'):
        load(written(alone(f"gpu.communication.{key}")), 2)


def test_fitted_tables_are_those_that_kernels_read():
    source = {"source"}
    assert fitted.GemmTable.model_fields.keys() - source == {*kernels.GemmConstants._fields}
    assert fitted.KernelTable.model_fields.keys() - source == {*kernels.AttentionConstants._fields}
    assert fitted.MemoryKernelsTable.model_fields.keys() - source == {
        "fixed", *kernels.MEMORY_KINDS, *kernels.VARIANTS,
        "conv1d", "scan",  # that no topology has measured
    }  # fmt: skip


def test_a_base_is_relative_to_the_file_that_names_it(written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = written(GOOD)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/one.toml").write_text('base = "two.toml"\nname = "one"\n')
    (tmp_path / "deep/two.toml").write_text('base = "../mine.toml"\n')
    assert load("deep/one.toml", 32).capacity.tolist() == load(path, 32).capacity.tolist()
    (tmp_path / "deep/two.toml").write_text('base = "../deep/./one.toml"\n')
    with pytest.raises(ValueError, match="is its own base"):
        load(tmp_path / "deep/one.toml", 8)


def test_more_gpus_than_can_be_simulated_are_refused():
    with pytest.raises(ValueError, match=r"holds 1 to 131,072 GPUs, not 131,073"):
        load("dgx_a100", 131_073)


def test_unknown_names_and_missing_files():
    with pytest.raises(ValueError, match=r"no topology 'dgx'; there are a100_pcie, .*dgx_a100"):
        load("dgx", 8)
    with pytest.raises(ValueError, match="cannot read the topology file"):
        load("nowhere/dgx.toml", 8)
    with pytest.raises(ValueError, match="no topology 'DGX_A10'; did you mean dgx_a100"):
        load("DGX_A10", 8)


def test_a_step_too_long_to_simulate_is_refused_before_it_is(written):
    """A terabyte per collective over the slowest link that a file may give, 1e-3 B/s."""
    slow = '[node.link]\nbandwidth = "1 kB/s"\nefficiency = 1e-6\n'
    model, path = LAYER | {"hidden": 2**20, "ffn": 2**30}, written(GOOD + slow)
    with pytest.raises(ValueError, match=r"the step's ops take .* s together, and at most 1e\+12"):
        ran(model, 512, topology=path, tp=2, training={"micro_batch": 512})
