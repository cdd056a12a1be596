"""Edits and the causal profile: hand-worked steps, another topology, a second simulation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sim.engine import simulate
from sim.graph import Builder, Communication, Fixed, Graph
from sim.machine import cluster
from sim.machine.edits import Edit, applied
from sim.machine.hardware import ideal
from sim.runs.run import prepare
from sim.whatif import causal_profile, edited, link_names, parse
from tests.recipes import ran

RECIPES = Path(__file__).parents[3] / "validation" / "recipes"


def ranks(*seconds: float) -> Graph:
    """Each rank launches for 1 s, computes, and reduces with the others."""
    b = Builder()
    reduce = Communication("all_reduce", 8.0, tuple(range(len(seconds))), "dp")
    members = []
    for rank, one in enumerate(seconds):
        call = b.add("launch", rank, "host", Fixed(1.0, "host"))
        kernel = b.add("kernel", rank, "compute", Fixed(one, "gemm"))
        b.wait(kernel, call, 0.5)
        members.append(b.add("reduce", rank, "dp", reduce, [kernel]))
    b.join(members)
    return b.graph()


@pytest.mark.parametrize(
    ("edit", "step"),
    [
        ("compute * 1", 12.5),  # 1 + 0.5 + 9 + 2
        ("compute * 0.5", 8.0),
        ("compute / 2", 8.0),
        ("compute * 0.5 where kind=gemm and rank=3", 8.5),  # rank 0's 5 s are longest
        ("compute * 2 where rank=0-1", 13.5),
        ("compute * 0.5; communication * 2 where dimension=dp", 10.0),
        ("communication * 2 where rank=2", 14.5),  # it is one for all its members
        ("communication * 0", 10.5),
        ("launch * 0", 11.5),
        ("lag * 0", 12.0),
        ("remove stragglers", 7.5),  # every kernel the 4 s of the lower median
    ],
)
def test_a_step_worked_by_hand(edit, step):
    graph = ranks(5.0, 4.0, 3.0, 9.0)
    machine = ideal(graph, p2p=2.0)
    changed = edited(graph, machine, edit)
    assert simulate(*changed).seconds == step
    assert simulate(graph, machine).seconds == 12.5  # what it was made from stays


def test_edits_of_one_graph_multiply_where_they_say():
    """Rank 3's kernel takes 9 x 2 x 0.5 s, then all kernels a third more, and waits half of 0.5."""
    graph = ranks(5.0, 4.0, 3.0, 9.0)
    kernel, fourth = graph.stream == graph.streams.index("compute"), graph.rank == 3
    twice = [Edit("kernels", kernel & fourth, of) for of in (2.0, np.full(len(graph), 0.5))]
    more = Edit("work", kernel, 4.0 / 3.0)
    changed = applied(graph, ideal(graph, p2p=2.0), *twice, more, Edit("lag", kernel, 0.5))
    assert simulate(*changed).seconds == pytest.approx(1.0 + 0.25 + 12.0 + 2.0)
    slower = applied(graph, ideal(graph, p2p=2.0), twice[0])
    assert simulate(*slower).seconds == 1.0 + 0.5 + 18.0 + 2.0


def test_recorded_kernels_keep_their_seconds_in_their_work():
    """What reads ``Fixed`` seconds, as slack does, sees the edit too."""
    graph = ranks(5.0, 4.0)
    changed, _ = edited(graph, ideal(graph), "compute * 0.5 where rank=0")
    kernels = [changed.op(i).work for i in range(len(changed)) if changed.op(i).name == "kernel"]
    assert kernels == [Fixed(2.5, "gemm"), Fixed(4.0, "gemm")]


def test_an_edit_by_one_changes_no_bit_of_a_real_step(small_job):
    """Nor does one of all works apart; sharing of links and GPUs included."""
    _, graph, machine = prepare(small_job(pp=2, dp=2, tp=2), cluster.load("dgx_a100", 8), False)
    before = simulate(graph, machine)
    for edit in ("compute * 1", "communication * 1", "compute * 1 where phase=F"):
        after = simulate(*edited(graph, machine, edit))
        assert (after.start == before.start).all()
        assert (after.end == before.end).all()


def test_links_twice_as_fast_are_those_of_such_a_topology(small_job, tmp_path):
    """Priced anew for a machine with twice the NVLink: the same capacities and speeds."""
    text = (
        'base = "dgx_a100"\nname = "twice"\n[node.link]\nbandwidth = "{} GB/s"\nsource = "test"\n'
    )
    (tmp_path / "twice.toml").write_text(text.format(2 * 300))
    (tmp_path / "once.toml").write_text(text.format(300))
    once, twice = (cluster.load(str(tmp_path / f"{n}.toml"), 8) for n in ("once", "twice"))
    job = small_job(tp=4, dp=2)
    _, graph, machine = prepare(job, once)
    _, _, expected = prepare(job, twice)
    _, changed = edited(graph, machine, "link nvlink bandwidth * 2", once)
    assert changed.capacity == pytest.approx(expected.capacity)
    assert changed.speed == pytest.approx(expected.speed)
    assert (changed.speed > machine.speed)[machine.size > 0].all()
    assert changed.latency == pytest.approx(expected.latency, rel=1e-12)
    assert (changed.latency < 0.99 * machine.latency).any()


@pytest.mark.slow
@pytest.mark.parametrize("slow", [[], [{"link": "nvlink", "bandwidth": 0.5, "rank": 3}]])
def test_a_step_after_edits_of_links_is_that_of_such_a_topology(tmp_path, slow):
    """Ring, tree and messages, in a node and across; also where a link is slow besides."""
    (tmp_path / "fast.toml").write_text(
        'base = "dgx_h100"\nname = "fast"\n[node.link]\nbandwidth = "900 GB/s"\n'
        '[node.nic]\nbandwidth = "25 GB/s"\n'
    )
    model = {"preset": "llama3-8b", "layers": 4, "vocab": 1024}
    both = ("dgx_h100", tmp_path / "fast.toml")
    plain, wanted = (ran(model, 8, *slow, topology=on, gpus=16, tp=4, pp=2) for on in both)
    graph, machine = plain.timeline.graph, plain.machine
    changed = edited(graph, machine, "link nvlink * 2; link ib / 2", plain.cluster)
    assert simulate(*changed).seconds == pytest.approx(wanted.timeline.seconds, rel=1e-9)
    assert simulate(*changed).seconds != pytest.approx(plain.timeline.seconds, rel=1e-3)
    halved = edited(graph, machine, "communication * 0.5; link nvlink * 2", plain.cluster)
    other = edited(graph, machine, "link nvlink * 2; communication * 0.5", plain.cluster)
    assert halved[1].latency == pytest.approx(other[1].latency, rel=1e-12)


def test_nics_are_ib_and_switches_of_a_node_are_not():
    found = set(link_names(cluster.load("dgx_a100", 16)))
    assert found == {("nvlink",), ("pcie", "nic", "ib"), ("nic", "ib")}


def test_a_free_dimension_takes_nothing_from_kernels(small_job):
    """Without communication a replica takes what it takes alone: dp = 2 as fast as dp = 1."""
    machine = cluster.load("dgx_a100", 2)
    _, graph, prices = prepare(small_job(dp=2), machine)
    free = simulate(*edited(graph, prices, "communication * 0"))
    busy = free.end - free.start
    alone = prices.alone[graph.work]
    kernels = np.array([not isinstance(w, Communication) for w in graph.works])[graph.work]
    assert busy[kernels] == pytest.approx(alone[kernels])


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ("", "no edit in"),
        ("faster", "is no edit"),
        ("computes * 2", "did you mean 'compute'"),
        ("compute * fast", "'fast' gives no factor"),
        ("compute / 0", "'0' gives no factor"),
        ("compute * -1", "'-1' gives no factor"),
        ("link nvlink * 1e300", "'1e300' gives no factor from 0 to"),
        ("compute * 2 where knd=gemm", "did you mean 'kind'"),
        ("compute * 2 where kind", "is no condition"),
        ("compute * 2 where rank=a", "no rank 'a'"),
        ("compute * 2 where kind=softmax", "the graph has no compute op where kind=softmax"),
        ("copy * 2", "the graph has no copy op"),
        ("link ib * 2", "no names"),
        ("link ib * 0", "more than 0"),
    ],
)
def test_what_is_no_edit_is_refused_in_a_sentence(edit, said):
    graph = ranks(5.0, 4.0)
    with pytest.raises(ValueError, match="(?s)" + said) as error:
        edited(graph, ideal(graph), edit)
    assert "\n" not in str(error.value)


def test_an_unknown_link_is_named_with_those_there_are():
    graph = ranks(5.0, 4.0)
    links = cluster.load("dgx_a100", 16)
    with pytest.raises(ValueError, match="no link 'ethernet'; there are all, ib, nic, nvlink"):
        edited(graph, ideal(graph), "link ethernet * 2", links)
    with pytest.raises(ValueError, match=r"no link 'NVLink'; did you mean nvlink\? There are all"):
        edited(graph, ideal(graph), "link NVLink * 2", links)


def test_the_profile_of_two_paths_worked_by_hand():
    """10 s beside 8 s: the first gains what it loses until the second is longer."""
    b = Builder()
    b.add("long", 0, "compute", Fixed(10.0, "gemm"))
    b.add("short", 1, "compute", Fixed(8.0, "norm"))
    graph = b.graph()
    of = causal_profile(graph, ideal(graph), by="name").set_index(["name", "percent"])
    assert of.loc["long", "gain_s"].tolist() == pytest.approx([0.1, 1.0, 2.0])
    assert of.loc["long", "first_order_s"].tolist() == pytest.approx([0.1, 1.0, 5.0])
    assert of.loc["short", "gain_s"].tolist() == [0.0] * 3 == of.loc["short", "path_s"].tolist()


def test_the_profile_is_exact_where_one_path_decides(small_job):
    """One rank, nothing beside it: first order and simulation agree at 50 %."""
    _, graph, machine = prepare(small_job(), cluster.load("dgx_a100", 1))
    of = causal_profile(graph, machine)
    assert of["gain_s"].to_numpy() == pytest.approx(of["first_order_s"].to_numpy(), rel=1e-9)
    assert of["gain_s"].sum() == pytest.approx(0.61 * simulate(graph, machine).seconds)


def test_lags_belong_to_no_op():
    """The lag of 0.5 s behind the launch is on the path, and no faster host shortens it."""
    graph = ranks(5.0, 4.0)
    of = causal_profile(graph, ideal(graph, p2p=2.0)).set_index(["cause", "percent"])
    assert of.loc[("launch", 50.0), ["path_s", "gain_s"]].tolist() == [1.0, 0.5]


@pytest.mark.slow
def test_run_answers_what_if(traincast):
    recipe = RECIPES / "megatron_ci_7b_tp4_pp1.toml"
    edits = ["--what-if", "compute * 0.5", "--what-if", "link nvlink * 2"]
    code, out, _ = traincast("run", recipe, *edits, "--json")
    found = json.loads(out)
    assert code == 0
    assert [one["edit"] for one in found["what_if"]] == [
        "compute * 0.5", "link nvlink * 2", "compute * 0.5; link nvlink * 2",
    ]  # fmt: skip
    gains = [one["gain_s"] for one in found["what_if"]]
    assert 0 < gains[1] < gains[0] < gains[2] < found["step_time_s"]
    code, out, _ = traincast("run", recipe, *edits)
    assert "link nvlink * 2" in out
    code, _, error = traincast("run", recipe, "--what-if", "compute")
    assert (code, error.count("\n")) == (2, 1)


def test_parse_takes_any_blanks():
    assert parse("compute*2  where  kind=a") == parse("compute * 2 where kind = a")


def test_a_slow_rank_of_a_recipe_is_a_straggler_too():
    """Its kernels are slow by a factor of the machine; without it the step is the healthy one."""
    model = {"preset": "llama3-8b", "layers": 2, "vocab": 1024}
    healthy = ran(model, 8, gpus=4).timeline.seconds
    slow = ran(model, 8, {"rank": 2, "compute": 1.3}, gpus=4)
    graph, machine = edited(slow.timeline.graph, slow.machine, "remove stragglers")
    assert slow.timeline.seconds > 1.15 * healthy
    assert simulate(graph, machine).seconds == pytest.approx(healthy, rel=1e-9)
