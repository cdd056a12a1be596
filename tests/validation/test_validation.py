"""Validation: figures as published, predictions of the parts that a paper gives, errors as told."""

import csv
import json
from pathlib import Path

import pytest

from sim.builder.shares import share
from sim.graph import Communication
from sim.machine import cluster
from sim.machine.collectives import alone, traffic
from sim.machine.kernels import compute_seconds
from sim.model.layer import layer
from sim.recipe import recipe_file
from sim.runs.run import job_of, run
from traincast import main as cli
from validation import figures, tables
from validation import run as runner
from validation.families import families, rank_correlation
from validation.figures import FIGURES, layer_timelines
from validation.run import ComparedFigure, TableOutcome, summary, total

RESULTS = Path(__file__).parents[2] / "validation" / "results.md"
ROWS = [(name, row) for name in tables.names() for row in tables.read(name).rows]
LAYER = tables.RECIPES / "korthikanti_22b_full.toml"
NO_RECOMPUTE = {"training.recompute": "none"}

ELSEWHERE = ("vtrain_multi", "vtrain_single", "mtnlg2022")
"""Tables of step times whose figures are not rows of the shared files of published runs."""
STEPS = {  # our row: its row in the shared data, where that has another name
    "22B_full": "korthikanti22_t5_22B_full",
    "175B_selective": "korthikanti22_t5_175B_seqsel",
    "530B_full": "korthikanti22_t5_530B_full",
    "145B": "narayanan21_t1_145B",
    "15b_h100_n16_bf16": "dgxc_v24.11.1_15b_h100_n16_bf16",
    "175b_h100_n512_bf16": "dgxc_v24.11.1_175b_h100_n512_bf16",
    "14.6B_m48_1f1b": "zb_t4_14.6B_m48_1f1b",
}
LAYERS = {
    "baseline": "baseline_no_recompute",
    "sequence_parallel": "sequence_parallel",
    "full_recompute": "baseline_with_recompute",
    "selective_recompute": "selective_recompute",
    "selective_and_sequence": "selective_and_sequence",
}
STAGES = {"1.5b": "1.5B_m32", "6.2b": "6.2B_m24", "14.6b": "14.6B_m48", "28.3b": "28.3B_m96"}


@pytest.fixture(scope="session")
def published(shared):
    """Every row of the shared files of published runs, by id."""
    names = ["korthikanti2022", "narayanan2021_mtnlg", "dgxc_benchmarking", "zero_bubble"]
    names += ["mosaicml_llmfoundry_fsdp", "torchtitan", "yafsdp", "fms_fsdp", "kwai_atc24"]
    names += ["simumax_b200", "bloom_a100", "nemo_perf", "megatron_bridge_perf"]
    files = [json.loads((shared / "published" / f"{name}.json").read_text()) for name in names]
    return {row["id"]: row for rows in files for row in rows}


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[f"{n}-{row.id}" for n, row in ROWS])
def test_every_row_has_a_recipe_and_a_way_to_predict_it(name, row):
    assert recipe_file.load(row.recipe, row.overrides).cluster.gpus >= 1
    assert row.figure in FIGURES
    assert row.measured > 0


def test_step_times_are_the_published_ones(published):
    """And the jobs have the published number of GPUs, batch and, where it says, sequence."""
    steps = {r.id: r for name, r in ROWS if r.figure == "step" and name not in ELSEWHERE}
    assert steps.keys() >= STEPS.keys()
    for mine, row in steps.items():
        theirs = published[STEPS.get(mine, mine)]
        assert row.measured == pytest.approx(_seconds(theirs), rel=1e-4)
        recipe = recipe_file.load(row.recipe, row.overrides)
        assert recipe.cluster.gpus == theirs["hardware"]["num_gpus"]
        assert recipe.training.global_batch == theirs["global_batch"]
        assert recipe.sequence == theirs["model"]["seq"]


def test_mtnlg_is_the_papers():
    """Smith et al. 2022, section 2.4: 60.1, 50.2 and 44.4 s on 280, 350 and 420 DGX A100."""
    rows = tables.read("mtnlg2022").rows
    assert [row.measured for row in rows] == [60.1, 50.2, 44.4]
    recipes = [recipe_file.load(row.recipe, row.overrides) for row in rows]
    assert [recipe.cluster.gpus // 8 for recipe in recipes] == [280, 350, 420]
    assert {recipe.training.global_batch for recipe in recipes} == {1920}


VTRAIN = {  # the CSV's column: its key in a recipe, in the order by which rows are chosen
    "# GPUs": "cluster.gpus",
    "hidden size": "model.hidden",
    "tensor parallelism": "parallelism.tp",
    "pipeline parallelism": "parallelism.pp",
    "data parallelism": "parallelism.dp",
    "# layers": "model.layers",
    "micro batch": "training.micro_batch",
    "global batch": "training.global_batch",
}


@pytest.mark.parametrize(("kind", "count"), [("multi", 24), ("single", 16)])
def test_vtrains_rows_are_at_equal_distances_and_as_measured(shared, kind, count):
    with (shared / "vtrain" / f"ground_truth_{kind}.csv").open() as file:
        every = sorted(csv.DictReader(file), key=lambda row: [int(row[key]) for key in VTRAIN])
    theirs = [every[i * len(every) // count] for i in range(count)]
    ours = tables.read(f"vtrain_{kind}").rows
    for row, measured in zip(ours, theirs, strict=True):
        assert {key: row.overrides[key] for key in VTRAIN.values()} == {
            key: int(measured[column]) for column, key in VTRAIN.items()
        }
        assert row.overrides["model.heads"] == int(measured["attention heads"])
        assert row.overrides["model.sequence"] == int(measured["sequence length"])
        assert row.measured == pytest.approx(float(measured["iteration time (ms)"]) / 1e3, rel=1e-5)


def test_blooms_rows_are_at_equal_distances(published):
    known = [
        row
        for row in published.values()
        if row["id"].startswith("bloom_l") and row["model"]["layers"] and _known(row)
    ]
    known.sort(key=_order)
    chosen = [known[i * len(known) // 11]["id"] for i in range(11)]
    assert [row.id for row in tables.read("bloom_a100").rows] == [*chosen, "bloom_176b_production"]


def _known(row):
    return "iteration_time_s" in row["measured"]


def _order(row):
    split, model = row["parallelism"], row["model"]
    sizes = model["hidden"], model["heads"], model["layers"]
    return (split["tp"], split["pp"], row["micro_batch"], *sizes, row["id"])


def test_jobs_are_split_as_published(published):
    names = ("simumax_b200", "bloom_a100", "nemo_fp8", "megatron_bridge_fp8", "narayanan2021_ptd")
    dgxc = ("dgxc_v24_11_1", "dgxc_v25_02", "dgxc_fp8", "dgxc_gb200")
    for row in (row for name in names + dgxc for row in tables.read(name).rows):
        recipe = recipe_file.load(row.recipe, row.overrides)
        theirs = published[STEPS.get(row.id, row.id)]
        split = theirs["parallelism"]
        for axis in ("tp", "pp", "cp", "ep"):
            assert getattr(recipe.parallelism, axis) == split[axis], row.id
        assert recipe.training.micro_batch == theirs["micro_batch"], row.id
        if split["vp"]:
            assert (recipe.schedule.chunks or 1) == split["vp"], row.id
        model = recipe.architecture
        for key in ("layers", "hidden", "heads", "kv_heads", "ffn"):
            assert getattr(model, key) == theirs["model"][key], (row.id, key)


FAMILIES = {
    "Megatron A100", "zero-bubble", "vTrain multi", "vTrain single", "DGX-C H100 bf16",
    "DGX-C fp8", "FSDP H100", "FSDP A100", "SimuMax B200", "torchtitan", "BLOOM", "MT-NLG",
    "ZeRO-3 2021", "YaFSDP", "Grok", "context parallel", "NeMo fp8", "DGX-C GB200",
}  # fmt: skip


def test_every_step_time_and_nothing_else_has_a_family():
    assert {row.family for _, row in ROWS if row.figure == "step"} == FAMILIES
    assert {row.family for _, row in ROWS if row.figure != "step"} == {""}


def test_a_familys_errors_and_ranks_are_those_of_its_rows():
    """8 for 10 s of 60 GFLOP, 33 for 30 s of 30, 9 for 8 s of 20: the same order in GFLOP/s."""
    table = tables.read("simumax_b200")
    figures = [(8.0, 10.0, 60e9), (33.0, 30.0, 30e9), (9.0, 8.0, 20e9)]
    rows = [ComparedFigure("", p, m, family="SimuMax B200", flops=f) for p, m, f in figures]
    other = ComparedFigure("", 1.0, 2.0, family="other")
    found, alone_ = families([TableOutcome(table, rows), TableOutcome(table, [other])])
    assert (found.name, found.rows, found.max) == ("SimuMax B200", 3, pytest.approx(0.2))
    assert found.mean == pytest.approx((0.2 + 0.1 + 0.125) / 3)
    assert found.bias == pytest.approx((-0.2 + 0.1 + 0.125) / 3)
    assert found.rank == 1.0
    assert [peer["name"] for peer in found.peers] == ["SimuMax v1.2"]
    assert (alone_.name, alone_.rank) == ("other", None)


def test_ranks_are_of_throughput_not_of_time():
    """Times 1, 2, 3 s in both; predicted 6, 5, 4 FLOP/s; measured at 2, 2, 3 s: 3, 5, 4."""
    pairs = [(1.0, 2.0, 6.0), (2.0, 2.0, 10.0), (3.0, 3.0, 12.0)]
    rows = [ComparedFigure("", p, m, flops=f) for p, m, f in pairs]
    assert rank_correlation(rows) == -0.5
    assert rank_correlation(rows[:2]) is None
    assert (
        rank_correlation([ComparedFigure("", 1.0, k, flops=1.0) for k in (1.0, 2.0, 3.0)]) is None
    )


def test_a_step_times_throughput_counts_the_models_flops_per_gpu():
    """GPT 22B of table 5, by equation 8 of Korthikanti et al.: 72 B L s h² (1 + s/6h + V/12hL)."""
    row = tables.read("korthikanti2022_table5").rows[0]
    b, layers, s, h, vocab = 4, 48, 2048, 6144, 51200
    flops = 72 * b * layers * s * h**2 * (1 + s / (6 * h) + vocab / (12 * h * layers))
    assert runner.compare(row).flops == pytest.approx(flops / 8, rel=1e-9)


@pytest.mark.slow
def test_of_steps_that_overlap_one_of_the_steady_state_counts():
    """ZB pipelines check the norm after the update, beside the next step: several are simulated."""
    rows = {row.id: row for row in tables.read("zero_bubble2023_table4").rows}
    row = rows["zb_t4_1.5B_m24_zb-1p"]
    result = run(recipe_file.load(row.recipe, row.overrides))
    assert runner.compare(row).predicted == result.summary["step_time_s"]
    assert result.timeline.seconds > 2 * result.summary["step_time_s"]


def test_simumaxs_own_errors_are_those_of_its_rows(published):
    peer = tables.read("simumax_b200").peer
    rows = [published[row.id] for row in tables.read("simumax_b200").rows]
    errors = [
        abs(row["peer_prediction"]["iteration_time_s"] / row["measured"]["iteration_time_s"] - 1)
        for row in rows
    ]
    assert (peer.mean, peer.max) == (
        pytest.approx(sum(errors) / 17, abs=1e-4),
        pytest.approx(max(errors), abs=1e-4),
    )


def _seconds(row):
    """Seconds of a step, from tokens/s per GPU where no time is given."""
    known = row["measured"] | row.get("derived", {})
    if "iteration_time_s" in known:
        return known["iteration_time_s"]
    tokens = row["global_batch"] * row["model"]["seq"]
    return tokens / (row["hardware"]["num_gpus"] * known["tokens_per_s_per_gpu"])


def test_what_yafsdp_saves_is_the_published(published):
    for row in tables.read("yafsdp_speedup").rows:
        percent = published[row.id.removesuffix("_speedup")]["measured"]
        assert row.measured == pytest.approx(percent["speedup_yafsdp_vs_fsdp_pct"] / 100, rel=1e-12)


def test_the_share_saved_is_of_the_time_of_fsdp(monkeypatch):
    """6 s with YaFSDP where FSDP1 takes 8 s: a quarter; measured a fifth, 5 points off."""
    table = tables.read("yafsdp_speedup")
    one = table._replace(rows=(table.rows[0]._replace(measured=0.2),))
    monkeypatch.setattr(tables, "read", lambda name: one)
    seconds = {"yafsdp": 6.0, "fsdp1": 8.0}
    monkeypatch.setattr(figures, "step", lambda recipe: seconds[recipe.parallelism.fsdp.kind])
    (outcome,) = runner.validate(["yafsdp_speedup"])
    assert outcome.rows[0].predicted == 0.25
    assert outcome.rows[0].error == pytest.approx(0.05)


def test_layer_and_stage_times_are_the_published_ones(published):
    rows = {row.id: row for _, row in ROWS}
    for mine, theirs in LAYERS.items():
        for way in ("forward", "backward"):
            measured = published[f"korthikanti22_t4_layer_{theirs}"]["measured"]
            milliseconds = measured[f"layer_{way}_ms"]
            assert rows[f"{mine}_{way}"].measured == pytest.approx(milliseconds * 1e-3, rel=1e-12)
    for mine, theirs in STAGES.items():
        for phase in "FBW":
            milliseconds = published[f"zb_t4_{theirs}_1f1b"]["profile_ms"][f"T_{phase}"]
            assert rows[f"{mine}_{phase}"].measured == pytest.approx(milliseconds * 1e-3, rel=1e-12)


@pytest.mark.slow
def test_memory_is_the_papers():
    """Activations exactly; weights, gradients and optimizer but for biases and norms."""
    table = tables.read("korthikanti2022_figure1")
    for row in table.rows:
        within = {"activations": 1e-9, "state": 1e-3}[row.figure]
        assert abs(runner.compare(row).error) < within, row.id


def test_a_forward_without_overlap_is_the_sum_of_its_parts():
    """Kernel by kernel from the cost model, and two all-reduces of s b h 16-bit numbers."""
    recipe = recipe_file.load(LAYER, NO_RECOMPUTE)
    job = job_of(recipe)
    machine = cluster.load("selene", 8)
    expected = 0.0
    for operator in layer(job.model, share(job)):
        for launch in operator.forward:
            arithmetic, memory, fixed = compute_seconds(machine.gpu, launch.work)
            expected += max(arithmetic, memory) + fixed
    residual = 2048 * 4 * 6144 * 2.0
    reduced = Communication("all_reduce", residual, tuple(range(8)), "tp")
    expected += 2 * alone(machine, traffic(machine, reduced))
    assert layer_timelines(recipe)["F"].seconds == pytest.approx(expected, rel=1e-9)


def test_several_layers_and_both_halves_of_a_backward_add_up():
    """On one GPU nothing overlaps: three layers take thrice as long, and B is I and W."""
    one_gpu = {**NO_RECOMPUTE, "parallelism.tp": 1, "cluster.gpus": 1, "simulation.clock": "boost"}
    recipe = recipe_file.load(LAYER, one_gpu)
    one, three = layer_timelines(recipe), layer_timelines(recipe, 3)
    for phase in "FBIW":
        assert three[phase].seconds == pytest.approx(3 * one[phase].seconds, rel=1e-9)
    assert one["B"].seconds == pytest.approx(one["I"].seconds + one["W"].seconds, rel=1e-9)


def test_errors_are_signed_and_summed_as_documented():
    """8 for 10 is a fifth too little, 33 for 30 a tenth too much; only the first is a step time."""
    table = tables.read("korthikanti2022_table5")
    row = table.rows[0]
    table = table._replace(rows=(row, row._replace(id="part", figure="state")))
    outcome = TableOutcome(
        table, [ComparedFigure(row.id, 8.0, 10.0), ComparedFigure("part", 33.0, 30.0)]
    )
    found = summary([outcome])
    (made,) = found["tables"]
    assert [r["error"] for r in made["rows"]] == pytest.approx([-0.2, 0.1])
    assert (made["mean"], made["max"], made["count"]) == (pytest.approx(0.15), 0.2, 2)
    assert made["peer"]["name"] == "Calculon"
    assert found["steps"] == {"mean": 0.2, "max": 0.2, "count": 1}


def test_progress_names_each_figure_before_it_is_predicted(monkeypatch):
    said = []
    monkeypatch.setitem(FIGURES, "step", lambda recipe: 2.0 * recipe.cluster.gpus)
    (outcome,) = runner.validate(["korthikanti2022_table5"], lambda *what: said.append(what))
    assert [row.predicted for row in outcome.rows] == [16.0, 128.0, 560.0]
    assert said[2] == ("korthikanti2022_table5 530B_full", 2, 3)
    assert total(outcome.rows).rows == 3


@pytest.mark.slow
def test_the_command_prints_writes_and_refuses(capsys, tmp_path):
    def traincast(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(["validate", *arguments])
        return (end.value.code, *capsys.readouterr())

    page = tmp_path / "page.md"
    code, out, _ = traincast("korthikanti2022_figure1", "--json", "--out", str(page))
    (table,) = json.loads(out)["tables"]
    assert code == 0
    assert table["rows"][0].keys() == {"id", "predicted", "measured", "error"}
    assert table.keys() >= {"mean", "max", "count", "peer"}
    assert "| 22b_none_activations | 59.250 | 59.250 | +0.0 % |" in page.read_text()
    code, out, _ = traincast("korthikanti2022_figure1")
    assert code == 0
    assert "22b_none_state" in out
    assert "10 rows" in out
    code, _, err = traincast("korthikanti2022_figure1", "--plot", str(tmp_path / "none.png"))
    assert (code, err) == (2, "error: --plot draws step times; korthikanti2022_figure1 has none\n")
    picture = tmp_path / "steps.png"
    code, out, _ = traincast("fms_fsdp", "--plot", str(picture))
    assert code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "FSDP H100" in out
    code, _, err = traincast("table9")
    assert code == 2
    assert err.startswith("error: no table 'table9' of published figures; there are bloom_a100,")


@pytest.mark.slow
def test_a_step_has_the_interval_of_its_summary():
    """Of steps that overlap too: both are of one step."""
    for name, id_ in (("vtrain_single", ""), ("zero_bubble2023_table4", "zb_t4_1.5B_m24_zb-1p")):
        row = next(row for row in tables.read(name).rows if row.id.endswith(id_))
        found = runner.compare(row)
        summary_ = run(recipe_file.load(row.recipe, row.overrides)).summary
        assert [*found.interval] == pytest.approx(summary_["interval_s"])
        assert found.interval[0] < found.predicted < found.interval[1]
        assert all(abs(change) < 0.5 for both in found.moves.values() for change in both)


@pytest.mark.slow
def test_the_committed_results_are_of_this_code():
    """All rows stand in it; those that are predicted in an instant, with the same figures."""
    from sim.table import table
    from traincast.commands.parts import errors

    text = RESULTS.read_text()
    for name, row in ROWS:
        assert f"| {row.id} | " in text, name
    slow = {"step", "fsdp_time_saved"}
    long = {"zero_bubble_memory", "kwai_atc24_memory"}  # searched orders; steps whose copies decide
    quick = [name for name in tables.names() if tables.read(name).rows[0].figure not in slow]
    some = [name for name in quick if name not in long]
    for of in summary(runner.validate(some))["tables"]:
        for row in table(of["rows"], *errors.columns(of)).cells():
            assert f"| {' | '.join(row)} |" in text
