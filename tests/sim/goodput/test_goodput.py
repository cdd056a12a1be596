"""Goodput through the front door: a published run, bytes, money, energy, and what is refused."""

import json
from pathlib import Path

import pytest

import traincast as tc
from sim.goodput import inputs, kinds
from sim.goodput.kinds import Paths, State
from sim.goodput.state import state
from sim.machine.topology import read
from sim.recipe import recipe_file
from sim.recipe.goodput_sections import CheckpointSection
from sim.recipe.times import FORMULAS
from sim.runs.run import job_of

LLAMA = Path(__file__).parents[3] / "validation/goodput/llama3_405b_54_days.toml"
RECIPE = """
model = { preset = "gpt-1.5b" }
cluster = { topology = "dgx_a100", gpus = 16 }
parallelism = { tp = 2, pp = 2 }
training = { global_batch = 32 }
"""


@pytest.fixture
def recipe(tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text(RECIPE)
    return file


def figures(file, over=None, **asked):
    return tc.goodput(file, over, **{"steps": 20_000, "step_time": 2.0, "runs": 4} | asked)


@pytest.mark.slow
def test_llama3s_54_days_have_their_419_interruptions_and_over_90_percent():
    """At the step of the paper's 400 TFLOP/s, with the tokens that leaves time for."""
    found = tc.goodput(LLAMA, tokens="10.7T", step_time="6.72 s", runs=10)
    assert found["seconds"]["mean"] == pytest.approx(54 * 86_400, rel=0.01)
    assert sum(found["failures"].values()) == pytest.approx(419, rel=0.03)
    assert 0.90 < found["goodput"]["p5"] < found["goodput"]["p95"] < 0.95
    assert found["expected_s"] == pytest.approx(found["seconds"]["mean"], rel=0.005)
    per_day = {"gpu": 268, "nic": 42, "node": 46, "software": 63}  # table 5, in 54 days
    for kind, number in per_day.items():
        assert found["rates_per_day"][kind] * 54 == pytest.approx(number, rel=0.005)


PARAMETERS = 8.03e9  # of Llama 3 8B
LAYOUTS = {  # keys: bytes that all ranks read, over those of one copy
    "whole": ({}, 8.0),
    "zero1": ({"parallelism.zero": 1}, (8 * 2 + 12) / 14),
    "fsdp": ({"parallelism.tp": 1, "parallelism.pp": 1, "parallelism.fsdp": {}}, 1.0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_has_14_bytes_per_parameter_however_it_is_split(recipe, layout):
    """2 of a weight and 12 of Adam, once; 8 replicas read what each of them holds."""
    over, reads = LAYOUTS[layout]
    over = over | {"model.preset": "llama3-8b", "cluster.gpus": 32 if layout != "fsdp" else 16}
    of = state(job_of(recipe_file.load(recipe, over)), 8)
    assert of.total == pytest.approx(14 * PARAMETERS, rel=0.002)
    assert of.all_read == pytest.approx(reads * of.total)
    assert 8 * of.gpu == of.node >= of.total * 8 / over["cluster.gpus"] * (1 - 1e-12)


def test_a_tied_embedding_is_written_once_and_read_by_both_ends(recipe):
    """GPT-2's sizes: two stages write what one does; 8 x 50,304 x 768 weights are read again."""
    small = {"hidden": 768, "heads": 12, "layers": 4, "vocab": 50304, "tied": True, "ffn": 3072}
    over = {**{f"model.{key}": value for key, value in small.items()}, "model.preset": None,
            "model.gated": False, "model.sequence": 512, "parallelism.tp": 1,
            "parallelism.zero": 0, "cluster.gpus": 16}  # fmt: skip
    one, two = (
        state(job_of(recipe_file.load(recipe, over | {"parallelism.pp": pp})), 8) for pp in (1, 2)
    )
    assert two.total == one.total
    again = 8 * 14 * 50304 * 768
    assert two.all_read == pytest.approx(one.all_read / 2 + again)


def test_what_kinds_cost_by_hand():
    of = State(total=800.0, node=100.0, gpu=10.0, all_read=1600.0, node_reads=200.0, gpu_reads=20.0)
    ways = Paths(write=40.0, read=50.0, node=10.0, nics=25.0, host=5.0)
    assert kinds.costs("blocking", of, ways) == (20.0, 0.0, 32.0)
    assert kinds.costs("asynchronous", of, ways) == (2.0, 20.0, 32.0)
    assert kinds.costs("memory", of, ways) == (2.0, 4.0, 12.0)
    slow = ways._replace(node=2.0)
    assert kinds.costs("blocking", of, slow) == (50.0, 0.0, 100.0)


def test_a_recipe_may_name_every_kind_and_formula():
    for kind in kinds.NAMES:
        assert CheckpointSection(kind=kind).kind == kind
    for interval in (*FORMULAS, 5, "10 min"):
        assert CheckpointSection(interval=interval).interval == interval


def test_failures_add_up_over_the_job(recipe):
    """16 GPUs, 2 nodes and their 16 ports; a job in one node meets no network."""
    of = {"failures.gpu": "160 h", "failures.nic": "320 h", "failures.node": "never"}
    spec = read("dgx_a100")
    rates = inputs.faults(recipe_file.load(recipe, of), spec).rates
    assert [rates[name] * 3600 for name in ("gpu", "nic", "node")] == pytest.approx([0.1, 0.05, 0])
    one = recipe_file.load(recipe, {**of, "cluster.gpus": 8})
    assert inputs.faults(one, spec).rates["nic"] == 0.0
    whole = recipe_file.load(recipe, {"failures.job": "2 h"})
    assert inputs.faults(whole, spec).mtbf == 7200.0


def test_cost_and_energy_by_hand(recipe, tmp_path):
    """Two nodes and a spare of 8 GPUs at 2 USD; boards at their cap in steps, idle else."""
    machine = 'base = "dgx_h100"\n[price]\ngpu_hour = 2\n[storage]\nwrite = "1 GB/s"\n'
    (tmp_path / "m.toml").write_text(machine)
    over = {"cluster.topology": "m.toml", "failures.spares": 1, "failures.job": "3 h"}
    found = figures(recipe, over)
    seconds, parts = found["seconds"]["mean"], found["parts_s"]
    assert found["cost_usd"] == pytest.approx(24 * 2 * seconds / 3600)
    busy = parts["steps"] + parts["lost_work"]
    assert found["energy_j"] == pytest.approx(16 * (700 * busy + 120 * (seconds - busy)))
    assert found["checkpoint"]["stall"] == pytest.approx(found["checkpoint"]["bytes"] / 1e9)
    assert "cost_usd" not in figures(recipe)


@pytest.mark.slow
def test_the_step_is_simulated_unless_given(recipe):
    step = tc.run(recipe).summary["step_time_s"]
    assert figures(recipe, step_time=None)["step_s"] == step


def test_intervals_may_be_steps_times_or_formulas(recipe):
    over = {"failures.job": "6 h", "checkpoint.write": "1 GB/s"}
    for interval, steps in ((70, 70), ("10 min", 300), (10**6, 5000)):
        found = figures(recipe, {**over, "checkpoint.interval": interval}, steps=5000)["intervals"]
        assert found["chosen"]["steps"] == steps
    for name in FORMULAS:
        found = figures(recipe, {**over, "checkpoint.interval": name}, steps=5000)["intervals"]
        assert found["chosen"] == found[name]
        assert found["best"]["steps"] == pytest.approx((2 * 22 * 6 * 3600) ** 0.5 / 2, rel=0.1)


def test_a_job_that_cannot_fail_has_only_its_checkpoints(recipe):
    found = figures(recipe, {"failures.job": "never", "checkpoint.interval": 100})
    stall = found["checkpoint"]["stall"]
    assert found["seconds"]["mean"] == pytest.approx(40_000 + 200 * stall)
    assert found["mtbf_s"] is None
    assert found["intervals"]["best"]["steps"] == 20_000


def test_what_is_legal_and_hardly_meant_is_said(recipe):
    fails = {"failures.job": "20 min", "checkpoint.interval": "30 min"}
    (said,) = figures(recipe, fails)["warnings"]
    assert said.startswith("the job fails every 20.0 min and saves only every 30.0 min")
    late = {"checkpoint.kind": "asynchronous", "checkpoint.interval": 2}
    (said,) = figures(recipe, {**late, "checkpoint.write": "1 GB/s"})["warnings"]
    assert "the next one, 4 s later, waits" in said


@pytest.mark.slow
def test_command_and_python_agree(recipe, traincast, tmp_path):
    asked = ("--steps", 20_000, "--step-time", "2s", "--runs", 4)
    code, out, _ = traincast("goodput", recipe, *asked, "--json")
    assert code == 0
    assert json.loads(out) == json.loads(json.dumps(figures(recipe)))
    picture = tmp_path / "goodput.png"
    code, out, _ = traincast("goodput", recipe, *asked, "--plot", picture)
    assert code == 0
    assert "waiting for a spare" in out
    assert picture.stat().st_size > 5_000


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--tokens", "15"], "'15' is not a number above 0 with K, M, B or T"),
        (["--tokens", "0T"], "'0T' is not a number above 0"),
        ([], "give either tokens, such as 15T, or a number of steps"),
        (["--tokens", "1T", "--steps", "5"], "give either tokens"),
        (["--steps", "0"], "the run has 0 steps"),
        (["--steps", "5", "--step-time", "0s"], "'0s' is not a time above 0"),
        (["--steps", "5", "--step-time", "6"], "'6' is not a time above 0 with its unit"),
        (["--steps", "5", "--runs", "0"], "the number of runs is 0"),
        (["--steps", "5", "--set", "failures.gpu=0 h"], 'failures.gpu = "0 h" must be a time'),
        (["--steps", "5", "--set", "failures.spares=-1"], "failures.spares = -1 must be at least"),
        (["--steps", "5", "--set", "checkpoint.interval=0"], "checkpoint.interval = 0 must be"),
        (["--steps", "5", "--set", "checkpoint.kind=tape"], 'checkpoint.kind = "tape" must be'),
        (
            ["--steps", "5", "--set", "failures.job=1 h", "--set", "failures.gpu=1 h"],
            "failures.job and failures.gpu are both given",
        ),
        (["--steps", "500", "--set", "failures.job=1 s"], "too many failures to simulate"),
        (["--steps", "500", "--set", "failures.job=1e-320 h"], "the job fails every 0 s"),
        (["--steps", "500", "--step-time", "1e300s"], "saves every 1.16e+295 days, which are too"),
        (["--steps", "500", "--set", "checkpoint.write=1e-300 GB/s"], "too many failures"),
        (
            ["--steps", "500", "--set", "failures.slow={between='1 ns', lasts='1 h', factors=[2]}"],
            "which is too often to simulate; lengthen failures.slow.between",
        ),
        (["--steps", "1", "--plot", "x.gif7"], "no picture format"),
    ],
)
def test_refusals_are_one_sentence(recipe, traincast, asked, said):
    time = [] if "--step-time" in asked else ["--step-time", "2s"]
    code, out, error = traincast("goodput", recipe, *asked, *time)
    assert (code, out) == (2, "")
    assert said in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_a_copy_to_the_host_needs_its_bandwidth(recipe):
    spec = read("dgx_a100")
    spec["gpu"].pop("host_bandwidth")
    job = recipe_file.load(recipe, {"checkpoint.kind": "asynchronous"})
    with pytest.raises(tc.InputError, match=r"dgx_a100' has no gpu.host_bandwidth"):
        inputs.paths(job, spec)
    assert inputs.paths(recipe_file.load(recipe), spec).node == 1e9


def test_images_have_no_tokens(recipe):
    over = {"model.preset": "resnet-50", "parallelism.tp": 1, "parallelism.pp": 1}
    with pytest.raises(tc.InputError, match="trains on images, which have no tokens"):
        figures(recipe, over, steps=None, tokens="1T")
