"""The host's prices by class of op, and when a host that is never late is left out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from schedules.input_error import InputError
from sim.builder import issue
from sim.builder.host import HOST, launched
from sim.engine import simulate
from sim.graph import Builder, Fixed, Graph
from sim.machine import host_prices
from sim.machine.assumed import ranges
from sim.machine.hardware import ideal
from sim.machine.host_prices import CLASSES, KERNELS, TRANSFERS, HostPrices
from sim.runs.hosted import Issuer, is_late, issuer, most_added, sentence
from sim.runs.run import load, run
from traincast.commands.parts import host_table

RECIPE = Path(__file__).parents[3] / "validation/recipes/vtrain_gpt.toml"
GPT = {
    "model.layers": 4, "model.hidden": 1024, "model.heads": 16, "model.sequence": 1024,
    "cluster.gpus": 1, "parallelism.tp": 1, "parallelism.dp": 1, "training.micro_batch": 1,
    "training.global_batch": 3,
}  # fmt: skip
BIG = GPT | {"model.hidden": 8192, "model.heads": 64, "training.global_batch": 6}
WAYS = ("eager", "megatron", "compiled", "graphs")
OF_CLASS = {name: 2.0 ** -(k + 4) for k, name in enumerate(CLASSES)}  # all sums differ


def kernels(*seconds: float, waited: int = -1) -> tuple[Graph, np.ndarray, np.ndarray]:
    """Kernels of one rank one behind another, their seconds, and which of them is waited for."""
    builder = Builder()
    for k, length in enumerate(seconds):
        name = "grad_norm" if k == waited else f"k{k}"
        builder.add(name, 0, "compute", Fixed(length), microbatch=0)
    return builder.graph(), np.array(seconds), np.arange(len(seconds)) == waited


@pytest.mark.parametrize(("launch", "kernel"), [(3.0, 5.0), (5.0, 3.0), (4.0, 4.0), (0.0, 1.0)])
def test_kernels_behind_their_launches(launch, kernel, monkeypatch):
    """n kernels of g seconds behind launches of h take max(h + n g, n h + g): closed form."""
    n = 7
    graph, alone, waited = kernels(*[kernel] * n)
    monkeypatch.setattr("sim.runs.hosted.computing", lambda graph: np.ones(len(graph), bool))
    hosted = launched(graph, launch, waited)
    expected = max(launch + n * kernel, n * launch + kernel)
    assert simulate(hosted, ideal(hosted)).seconds == expected
    assert n * kernel + most_added(graph, alone, np.full(n, launch)) == expected


@pytest.mark.parametrize("waited", [-1, 0, 2, 4])
def test_what_the_host_adds_is_what_a_run_with_it_takes_longer(waited, monkeypatch):
    """Launches of any length, and one kernel that the host waits for; one rank: exactly."""
    monkeypatch.setattr("sim.runs.hosted.computing", lambda graph: np.ones(len(graph), bool))
    for seed in range(20):
        random = np.random.default_rng(seed)
        length, launch = random.integers(1, 9, (2, 6)).astype(float)
        graph, alone, waits = kernels(*length, waited=waited)
        hosted = launched(graph, launch, waits)
        took = simulate(hosted, ideal(hosted)).seconds
        assert alone.sum() + most_added(graph, alone, launch) == took


def test_a_host_is_late_that_is_so_at_the_end_of_its_range(monkeypatch):
    """Kernels of 3 s behind launches of 2.5 s, and of 3.525 s at the slowest."""
    monkeypatch.setattr("sim.runs.hosted.computing", lambda graph: np.ones(len(graph), bool))
    graph, _, _ = kernels(*[3.0] * 4000)
    host = Issuer(host_prices.constant(2.5))
    assert not is_late(graph, ideal(graph), host)
    assert is_late(graph, ideal(graph), host._replace(slowest=1.41))
    slowest = [issuer(load(RECIPE, GPT | {"simulation.host": way})).slowest for way in WAYS]
    assert slowest == [ranges()["host.speed"].high] * len(WAYS)


def test_each_op_costs_what_its_class_does():
    """GPT's layer forward by hand: 6 products, 2 norms, softmax, and elementwise the rest."""
    graph = run(RECIPE, GPT | {"training.recompute": "none"}).timeline.graph
    found = issue.seconds(graph, HostPrices("own", OF_CLASS, OF_CLASS))
    mine = (graph.layer == 1) & (graph.microbatch == 0) & (graph.phase == 1)
    names = sorted(graph.names[k] for k in graph.name[mine])
    classes = dict(zip(names, ["elementwise"] * len(names), strict=True))
    for name in ("qkv", "scores", "context", "projection", "fc1", "fc2"):
        classes[name] = "gemm"
    classes |= {"attention_norm": "norm", "mlp_norm": "norm", "softmax": "softmax"}
    assert len(names) == 15
    assert found[mine].sum() == sum(OF_CLASS[classes[name]] for name in names)
    assert np.isin(found, list(OF_CLASS.values())).all()


def test_a_layer_is_entered_once_in_each_pass():
    """4 layers, 3 microbatches: forward, recomputed forward, backward."""
    graph = run(RECIPE, GPT).timeline.graph
    free = dict.fromkeys(CLASSES, 0.0)
    found = issue.seconds(graph, HostPrices("own", free, free, (1.0, 100.0)))
    assert found.sum() == 4 * 3 * (1.0 + 1.0 + 100.0)
    assert graph.layer[found > 0].min() == 0


def test_a_graph_issues_the_kernels_of_its_layer():
    graph = run(RECIPE, GPT).timeline.graph
    found = issue.seconds(graph, host_prices.ways()["graphs"])
    layers = (graph.layer >= 0) & (graph.phase != 5)
    assert sorted(set(found[layers])) == [0.0, 38.9e-6]
    assert (found[~layers] > 0.6 * 74e-6).all()


def test_fsdp_is_priced_by_unit():
    """Each gather and each reduction has its hook's price; its copies have none."""
    shard = {"cluster.gpus": 8, "parallelism.dp": None, "training.global_batch": 8}
    fsdp = {
        "parallelism.fsdp": {"kind": "fsdp2"},
        "parallelism.overlap_grad_reduce": True,
        "training.recompute": "none",
    }
    graph = run(RECIPE, GPT | shard | fsdp).timeline.graph
    free = dict.fromkeys(CLASSES, 0.0) | {"gather": 1.0, "reduce": 100.0}
    found = issue.seconds(graph, HostPrices("own", free, free))
    units = 4 + 1  # the layers, and the rest in one
    assert found.sum() == pytest.approx(units * 100.0 + 2 * units - 1, abs=1)
    names = {graph.names[k] for k in graph.name[found > 0]}
    assert names == {"param_all_gather", "grad_reduce_scatter"}
    own = issue.seconds(graph, HostPrices("own", OF_CLASS, OF_CLASS))
    assert set(own[[graph.names[k].endswith(("copy_in", "copy_out")) for k in graph.name]]) == {0.0}


def test_a_host_that_is_never_late_is_left_out():
    """The step of large kernels is the same to the bit; that of small ones takes its launches."""
    large = [run(RECIPE, BIG | {"simulation.host": way}) for way in (False, "compiled")]
    assert large[0].timeline.seconds == large[1].timeline.seconds
    assert not large[1].summary["host"]["simulated"]
    small = run(RECIPE, GPT | {"simulation.host": "megatron"})
    host, seconds = small.summary["host"], small.timeline.seconds
    launches = sum(
        work.seconds * (small.timeline.graph.work == k).sum()
        for k, work in enumerate(small.timeline.graph.works)
        if isinstance(work, Fixed) and work.kind == HOST
    )
    assert host["simulated"]
    graph, alone = small.timeline.graph, small.machine.alone
    assert launches <= seconds <= launches + alone[graph.work[graph.phase == 5]].sum()
    assert host["launch_s"] > host["kernel_s"]


@pytest.mark.slow
def test_leaving_the_host_out_changes_a_step_by_no_more_than_is_said():
    """Whether it is left out or not, the step is that with the host within 0.0005."""
    simulated = []
    for hidden in (1024, 2048, 4096, 8192):
        way = GPT | {"model.hidden": hidden, "model.heads": hidden // 64}
        some = run(RECIPE, way | {"simulation.host": "megatron"})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sim.runs.hosted.SHARE", -1.0)
            every = run(RECIPE, way | {"simulation.host": "megatron"})
        assert every.summary["host"]["simulated"]
        simulated.append(some.summary["host"]["simulated"])
        assert some.timeline.seconds == pytest.approx(every.timeline.seconds, rel=5e-4)
    assert simulated == [True, True, True, False]  # 4096: 0.1 %


def test_folded_and_whole_take_the_same_time():
    way = {"cluster.gpus": 4, "parallelism.tp": 2, "parallelism.dp": 2, "training.global_batch": 4}
    both = [
        run(RECIPE, GPT | way | {"simulation.host": "megatron", "simulation.fold": fold})
        for fold in ("auto", "none")
    ]
    assert [one.summary["simulation"]["ranks_simulated"] for one in both] == [1, 4]
    assert both[0].timeline.seconds == pytest.approx(both[1].timeline.seconds, rel=1e-9)


@pytest.mark.slow
def test_a_stalled_host_is_simulated_however_early_it_is():
    stall = {"perturbations[0].stall": "50 ms", "simulation.host": "compiled"}
    without, stalled = (run(RECIPE, BIG | way).timeline for way in ({}, stall))
    assert HOST in stalled.graph.streams
    assert stalled.seconds < without.seconds + 0.05


def test_what_pytorch_does_not_fuse_is_issued_operator_by_operator():
    """An RMS norm of 6 operators costs the host 6 launches, where a fused one costs one."""
    way = GPT | {"model.norm": "rms", "training.recompute": "none"}
    eager = host_prices.ways()["eager"]
    spent = []
    for norm in ("fused", "eager"):
        graph = run(RECIPE, way | {"model.kernels": {"norm": norm}}).timeline.graph
        mine = np.array(["attention_norm" in name for name in graph.names])[graph.name]
        spent.append(issue.seconds(graph, eager)[mine & (graph.phase == 1)].sum() / (4 * 3))
    assert spent == pytest.approx([13.48e-6, 6 * 13.48e-6])


def recorded(path: Path, **changes: object) -> Path:
    table = {
        "launch": 10e-6,
        "forward": dict.fromkeys(KERNELS, 2.0),
        "backward": dict.fromkeys(KERNELS, 3.0),
        "transfers": dict.fromkeys(TRANSFERS, 4e-6),
    }
    path.write_text(json.dumps({"host": table | changes}))
    return path


def test_a_recorded_host_is_read_and_shown(tmp_path, capsys):
    path = recorded(tmp_path / "mine.json")
    recipe = load(RECIPE, GPT | {"simulation.host": str(path)})
    found = host_prices.prices(str(recipe.simulation.host))
    assert found.name == "mine"
    assert found.forward["gemm"] == pytest.approx(20e-6)
    assert found.backward["norm"] == pytest.approx(30e-6)
    assert found.forward["gather"] == found.backward["gather"] == 4e-6
    host_table.show(path)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert sum(line.startswith("│") for line in lines) == len(CLASSES)
    assert "│ norm │ 20 us │ 30 us │" in lines
    assert lines[-1] == 'next: [simulation] host = "mine.json" in a recipe in the same folder'


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"launch": "1 us"}, "mine.json: launch must be the seconds of an operator"),
        ({"forward": {"gemm": 1.0}}, "mine.json: forward lacks attention"),
        ({"backward": [1.0]}, "mine.json: backward must be a table of numbers by class of op"),
        ({"transfers": {"copy": -1.0}}, "mine.json: transfers must be a table of numbers"),
        ({"layer": [1.0]}, "mine.json: layer must be two numbers of seconds"),
    ],
)
def test_a_file_that_is_wrong_is_refused(changes, said, tmp_path):
    path = recorded(tmp_path / "mine.json", **changes)
    with pytest.raises(InputError, match=said):
        load(RECIPE, GPT | {"simulation.host": str(path)})


def test_what_is_no_host_is_refused(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    for way, said in {
        str(tmp_path / "other.json"): r"other.json has no host prices; traincast record host",
        str(tmp_path / "none.json"): r"none.json",
        "eagre": r"simulation.host",
    }.items():
        with pytest.raises(InputError, match=said):
            load(RECIPE, GPT | {"simulation.host": way})


def test_it_is_said_that_kernels_are_shorter_than_their_launches(traincast):
    args = [RECIPE, *(f"--set={key}={value}" for key, value in GPT.items())]
    for command in ("check", "run"):
        code, out, _ = traincast(command, *args)
        said = " ".join(out.split())
        assert code == 0
        assert 'each (megatron): the step comes out too short unless simulation.host = "m' in said
        code, out, _ = traincast(command, *args, "--set=simulation.host=megatron")
        assert "each (megatron): the GPU waits for it" in " ".join(out.split())
    pace = {"prices": "eager", "kernel_s": 2e-5, "launch_s": 2e-5, "simulated": True}
    assert sentence(pace) == ""
