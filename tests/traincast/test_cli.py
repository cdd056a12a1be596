"""The command line through its front door: exit codes, one sentence on errors, JSON, files."""

import csv
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

import schedules
from sim.recipe import recipe_file
from sim.recipe.recipe import NOT_YET
from tests.small import CONFIG as LLAMA3_8B
from traincast.commands.parts import output, starter, tables
from traincast.main import app

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RECIPE = """
model.preset = "gpt-22b"
cluster = { topology = "dgx_a100", gpus = 8 }
parallelism.tp = 8
training = { micro_batch = 4, global_batch = 4, recompute = "full" }
"""


@pytest.fixture
def model(tmp_path) -> Path:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA3_8B))
    return file


PIPE = ["schedule", "gpipe", "--ranks", "4", "--microbatches", "8"]
COMMANDS = sorted(get_command(app).commands)


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_every_help_ends_with_an_example(command, traincast):
    code, out, _ = traincast(*command, "--help")
    assert code == 0
    last = re.split(r"\n\s*\n", out.strip())[-1].split()
    assert " ".join(last).startswith(" ".join(["Example: traincast", *command]))


def test_starting_up_loads_nothing_heavy():
    heavy = "{'matplotlib', 'pandas', 'networkx', 'numpy', 'simpy', 'pydantic'}"
    code = f"import sys, traincast.main; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    # typer itself loads some of them in some versions; we add none
    alone = subprocess.run(
        [sys.executable, "-c", code.replace("traincast.main", "typer")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == alone.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rum"], "No such command 'rum'"),
        (["run"], "Missing argument 'RECIPE'. Example: traincast run recipe.toml --set"),
        (["list"], "Missing argument 'kind'. Example: traincast list models"),
        (["run", "no.toml"], "cannot read the recipe no.toml"),
        (["run", "RECIPE", "--set", "parallelism.tp"], "--set takes KEY=VALUE"),
        (["run", "RECIPE", "--set", "parallelism.tpp=4"], "did you mean parallelism.tp?"),
        (["run", "RECIPE", "--set", "parallelism.tp=4.5"], "must be a whole number"),
        (["run", "RECIPE", "--ranks", "a"], "--ranks takes ranks such as 0,4-7"),
        (["run", "RECIPE", "--ranks", ""], "--ranks takes ranks such as 0,4-7"),
        (["run", "RECIPE", "--ranks", "٣"], "--ranks takes ranks such as 0,4-7"),
        (["run", "RECIPE", "--ranks", "7-4"], "--ranks 7-4 runs backwards; 4-7 would do"),
        (["run", "RECIPE", "--ranks", "0-200000000"], "there is no rank 200000000; the job has 0"),
        (["run", "RECIPE", "--ranks", "8"], "there is no rank 8; the job has 0 to 7"),
        (["run", "RECIPE", "--ranks", "3"], "rank 3 is not simulated, since another"),
        (["run", "RECIPE", "--window", "2:1"], "--window takes FROM:TO in seconds"),
        (["run", "RECIPE", "--window", ""], "--window takes FROM:TO in seconds"),
        (["run", "RECIPE", "--window", "٣:٤"], "--window takes FROM:TO in seconds"),
        (["run", "RECIPE", "--window", "50:60", "--out", "FOLDER/x"], "after the step has ended"),
        (["run", "RECIPE", "--out", "RECIPE/out"], "recipe.toml is a file"),
        (["run", "RECIPE", "--out", "RECIPE"], "it is a file"),
        (["run", "RECIPE", "--out", ""], "an empty path names no file"),
        (["run", "RECIPE", "--set", "model.layers=1\nx=3"], "takes a value of one line"),
        (["run", "RECIPE", "--set", "cluster.gpus=9", "--out", "FOLDER/x"], "9; a multiple of 8"),
        (["check", "RECIPE", "--set", "cluster.gpus=9"], "but cluster.gpus = 9"),
        (["schedule", "zbx", "--ranks", "4", "--microbatches", "8"], "no schedule 'zbx'"),
        (["schedule", "gpipe", "--ranks", "0", "--microbatches", "8"], "ranks = 0 must be at"),
        (["schedule", "gpipe", "--ranks", "4", "--microbatches", "x"], "--microbatches"),
        ([*PIPE, "--times", "F=1/2/3"],
         "gives 3 numbers for F, but the pipeline has 4 stages; give"),
        ([*PIPE, "--times", "F=1/2//3"], "or F=5/6/7 stage by stage, from 1e-12"),
        ([*PIPE, "--times", "F=1/2/-3/4"], "to 1e+12, not 'F=1/2/-3/4'"),
        ([*PIPE, "--times", "p2p=0/1"],
         "gives 2 numbers for p2p, but the pipeline has 3 boundaries; give"),
        ([*PIPE, "--times", "FB=9/9/9/9"], "--times takes one number for FB"),
        (["schedule", "gpipe", "--ranks", "4", "--microbatches", "8", "--times", "F=-1"],
         "--times takes positive seconds"),
        (["schedule", "gpipe", "--ranks", "4", "--microbatches", "8", "--times", "F=1e308"],
         "from 1e-12 to 1e+12, not 'F=1e308'"),
        ([*PIPE, "--times", "F=1,F=2"], "--times gives F twice"),
        ([*PIPE, "--csv", "FOLDER/" + "x" * 300], "File name too long"),
        (["schedule", "gpipe", "--ranks", "10001", "--microbatches", "1"], "at most 10,000"),
        (["schedule", "gpipe", "--ranks", "9999", "--microbatches", "999"], "at most 5,000,000"),
        ([*PIPE, "--csv", "FOLDER/x.csv", "--plot", "FOLDER/x.xyz"], "no picture format 'xyz'"),
        ([*PIPE, "--csv", "FOLDER/x.svg", "--plot", "FOLDER/x.svg"], "give two files"),
        ([*PIPE, "--csv", "FOLDER"], "it is a folder"),
        (["topology", "dgx_a100", "--gpus", "200000"], "holds 1 to 131,072 GPUs, not 200,000"),
        (["topology", "dgx_a10"], "did you mean dgx_a100?"),
        (["init", "HF", "dgx_a100", "--gpus", "200000"], "holds 1 to 131,072 GPUs, not 200,000"),
        (["init", "HF", "dgx_a100", "--out", "FOLDER"], "it is a folder"),
        (["schedule", "gpipe", "--ranks", "4", "--microbatches", "8", "--csv", "RECIPE/x.csv"],
         "cannot write to"),
        (["schedule", "interleaved_1f1b", "--ranks", "4", "--microbatches", "11"], "8 or 12 would"),
        (["list", "planets"], "there are models, layers, topologies, schedules, strategies"),
        (["topology", "dgx_b52"], "dgx_a100"),
        (["init", "no.json", "dgx_a100"], "cannot read no.json"),
        (["init", "llama3-9b", "dgx_a100"], "no model preset 'llama3-9b'; did you mean llama3-8b?"),
        (["init", "llama3-9b", "dgx_a100"], "or give the path of a config.json"),
        (["init", "mixtral-8x7b", "dgx_a100"], "has experts; init cannot split these"),
        (["init", "resnet-50", "dgx_a100"], "has blocks; init cannot split these"),
        (["init", "RECIPE", "dgx_a100"], "is not JSON"),
        (["calibrate", "tpu"], "no calibration for GPU 'tpu'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_exit_2(
    arguments, sentence, traincast, recipe, model, tmp_path
):
    names = {"RECIPE": recipe, "HF": model, "FOLDER": tmp_path}
    before = sorted(tmp_path.iterdir())
    for name, path in names.items():
        arguments = [word.replace(name, str(path)) for word in arguments]
    code, out, err = traincast(*arguments)
    assert (code, out) == (2, "")
    assert sorted(tmp_path.iterdir()) == before
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert sentence in err


def test_a_bug_is_exit_1_with_its_trace(traincast, monkeypatch):
    monkeypatch.setattr(schedules, "names", lambda: 1 / 0)
    code, _, err = traincast("schedule", "gpipe", "--ranks", 2, "--microbatches", 2)
    assert code == 1
    assert "ZeroDivisionError" in err
    assert "please report" in err


@pytest.mark.parametrize("kind", ["models", "topologies", "schedules"])
def test_list_names_the_files_there_are(kind, traincast):
    folder = ROOT / ("sim/recipe/" * (kind == "models") + kind)
    code, out, _ = traincast("list", kind, "--json")
    listed = {entry["name"]: entry for entry in json.loads(out)}
    assert code == 0
    assert set(listed) == {
        file.stem
        for file in folder.glob("[a-z]*.*")
        if kind != "schedules" or re.search(rf"^def {file.stem}\(\s*ranks", file.read_text(), re.M)
        if file.suffix != ".typed"
    }
    assert all(name in traincast("list", kind)[1] for name in listed)


def test_list_names_the_kinds_that_a_model_may_name(traincast, recipe):
    """Each by its key, as the refusal of another name says."""
    named = {"model.pattern": [], "model.feed_forward": []}
    for row in json.loads(traincast("list", "layers", "--json")[1]):
        named[row["key"]].append(row["name"])
        assert row["name"] in traincast("list", "layers")[1]
    for key, names in named.items():
        _, _, said = traincast("check", recipe, "--set", f'{key}=["planets"]')
        assert f"there are {', '.join(names)} and none" in said


def test_list_says_what_a_choice_means(traincast):
    rows = {
        kind: {entry["name"]: entry for entry in json.loads(traincast("list", kind, "--json")[1])}
        for kind in ("models", "topologies", "schedules")
    }
    assert rows["models"]["llama3-8b"]["parameters"] == pytest.approx(8.03e9, rel=1e-3)
    assert rows["topologies"]["selene"]["network_per_gpu"] == 25e9  # 200 Gb/s
    assert rows["topologies"]["selene"]["gpu"] == "A100-SXM4-80GB"
    interleaved, plain = (rows["schedules"][name] for name in ("interleaved_1f1b", "gpipe"))
    assert (interleaved["chunks"], interleaved["group"]) == (True, True)
    assert (plain["chunks"], plain["group"]) == (False, False)
    for name, row in rows["schedules"].items():
        takes = [
            key for key in schedules.options(name) if key not in ("F", "I", "W", "p2p", "policy")
        ]
        assert row["options"] == takes + ["times"] * schedules.takes_times(name)
    (line,) = [row for row in traincast("list", "schedules")[1].splitlines() if "pipedream" in row]
    assert "batch" in line


def test_strategies_are_keys_of_a_recipe_that_are_simulated(recipe, traincast):
    """All of its parallelism but for the numbering of ranks and what is not simulated yet."""
    code, out, _ = traincast("list", "strategies", "--json")
    assert code == 0
    keys = [entry["key"] for entry in json.loads(out)]
    complete = recipe_file.load(recipe).model_dump()
    for section, _, key in (key.partition(".") for key in keys):
        assert key in complete[section]
    later = {key for key, values in NOT_YET.items() if len(values) == 1}
    assert {f"parallelism.{key}" for key in complete["parallelism"]} - later - {
        "parallelism.order"
    } == {key for key in keys if key.startswith("parallelism.")}
    assert not any("`" in entry["about"] for entry in json.loads(out))
    assert all(key in traincast("list", "strategies")[1] for key in keys)


def test_topology_tells_its_links_and_routes(traincast):
    code, out, _ = traincast("topology", "dgx_h100", "--gpus", 16, "--json")
    machine = json.loads(out)
    assert code == 0
    assert (machine["gpus"], machine["gpus_per_node"]) == (16, 8)
    near, far = machine["routes"]["same node"], machine["routes"]["next node"]
    assert near["bandwidth"] > far["bandwidth"]
    assert near["hops"] == 2
    links = {link["between"]: link for link in machine["links"]}
    assert {name: link["count"] for name, link in links.items()} == {
        "GPU - NVSwitch": 16, "GPU - NIC": 16, "NIC - leaf": 16, "leaf - spine": 8,
    }  # fmt: skip
    assert links["GPU - NVSwitch"]["bandwidth"] == near["bandwidth"]
    out = traincast("topology", "dgx_h100")[1]
    assert machine["gpu"]["name"] in out
    assert out.startswith("dgx_h100")


def test_topology_is_drawn(tmp_path, traincast):
    file = tmp_path / "machine.svg"
    code, out, _ = traincast("topology", "dgx_a100", "--gpus", 16, "--plot", file)
    assert code == 0
    assert "wrote" in out
    assert "GPU - NIC: 16 links of 24 GB/s each way, 1 us" in file.read_text()


@pytest.mark.parametrize(
    ("topology", "gpus"), [("dgx_a100", None), ("dgx_h100", 16), ("selene", 64), ("dgx_a100", 3)]
)
def test_init_writes_a_complete_commented_legal_recipe(topology, gpus, model, tmp_path, traincast):
    out = tmp_path / "deep/recipe.toml"
    size = [] if gpus is None else ["--gpus", gpus]
    code, said, _ = traincast("init", model, topology, *size, "--out", out)
    assert code == 0
    assert str(out) in said
    job = recipe_file.load(out)
    assert job.cluster.gpus == (gpus or 8)
    assert job.architecture.hidden == 4096
    written = tomllib.loads(out.read_text())
    assert written["model"]["hf"] == "../config.json"
    complete = tomllib.loads(recipe_file.dump(job))
    for section, keys in complete.items():  # what is not written is there as a comment
        for key in keys:
            assert f"{key} = " in out.read_text(), key
        assert all(
            written[section][key] == complete[section][key]
            for key in written[section]
            if key != "hf"
        )
    lines = [line for line in out.read_text().splitlines() if " = " in line]
    assert all("  # " in line for line in lines)
    assert (
        recipe_file.load(
            out,
            {
                "parallelism.tp": 1,
                "parallelism.sp": False,
                "cluster.gpus": 8,
                "parallelism.pp": 8,
                "schedule.layers_per_stage": None,
            },
        ).parallelism.dp
        == 1
    )


def test_init_does_not_replace_an_edited_recipe(model, tmp_path, traincast):
    out = tmp_path / "recipe.toml"
    out.write_text("mine")
    code, _, err = traincast("init", model, "dgx_a100", "--out", out)
    assert code == 2
    assert "--force" in err
    assert out.read_text() == "mine"
    assert traincast("init", model, "dgx_a100", "--out", out, "--force")[0] == 0
    assert recipe_file.load(out).cluster.topology == "dgx_a100"


def test_init_prints_what_it_would_write(model, traincast, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, text, _ = traincast("init", model, "dgx_a100")
    assert code == 0
    assert recipe_file.parse(tomllib.loads(text), tmp_path).parallelism.zero == 1
    code, out, _ = traincast("init", model, "dgx_a100", "--json")
    assert json.loads(out)["model"] == {"hf": "config.json", "sequence": 4096}


def test_init_takes_a_preset(traincast, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, text, _ = traincast("init", "llama3-8b", "dgx_h100", "--gpus", 16)
    assert code == 0
    written = tomllib.loads(text)
    assert written["model"] == {"preset": "llama3-8b", "sequence": 4096}
    assert recipe_file.parse(written).model.vocab == 128256
    assert json.loads(traincast("init", "gpt-1.5b", "dgx_h100", "--json")[1])["model"] == {
        "preset": "gpt-1.5b",
        "sequence": 1024,
    }


def test_what_init_writes_can_be_varied_over_tp_and_zero(model, tmp_path, traincast):
    out = tmp_path / "recipe.toml"
    assert traincast("init", model, "dgx_a100", "--gpus", 8, "--out", out)[0] == 0
    for key, values in (("tp", (1, 2, 4)), ("zero", (0, 1, 2, 3))):
        for value in values:
            job = recipe_file.load(out, {f"parallelism.{key}": value}).parallelism
            assert getattr(job, key) == value
            assert job.sp == (job.tp > 1)
            assert job.overlap_param_gather == (job.zero in (1, 2))


def test_init_says_which_sequences_the_model_allows(model, traincast, tmp_path, monkeypatch):
    """4,096 tokens unless asked for; what config.json allows stands beside it."""
    monkeypatch.chdir(tmp_path)
    model.write_text(json.dumps({**LLAMA3_8B, "max_position_embeddings": 8192}))
    for asked, written in (((), 4096), (("--sequence", 8192), 8192)):
        code, text, _ = traincast("init", model, "dgx_h100", *asked)
        assert code == 0
        (line,) = [line for line in text.splitlines() if line.startswith("sequence = ")]
        assert line.startswith(f"sequence = {written} ")
        assert line.endswith("; config.json allows 8,192")


def test_init_splits_a_large_model_further(model, tmp_path):
    model.write_text(
        json.dumps(
            {
                **LLAMA3_8B,
                "num_hidden_layers": 126,
                "hidden_size": 16384,
                "intermediate_size": 53248,
                "num_attention_heads": 128,
            }
        )
    )
    data = starter.propose(model, "dgx_h100", None, tmp_path)
    split = data["parallelism"]["tp"] * data["parallelism"]["pp"]
    assert split >= 405e9 * 6 / 80e9  # weights and gradients alone take so many GPUs
    assert recipe_file.parse(data, tmp_path).cluster.gpus % 8 == 0


def test_a_file_is_whole_or_not_there(tmp_path):
    file = tmp_path / "deep/a.txt"
    assert output.write_text(file, "one\r\n").read_bytes() == b"one\r\n"
    with pytest.raises(UnicodeEncodeError):
        output.write_text(file, "two\udc80")
    assert file.read_bytes() == b"one\r\n"
    assert [entry.name for entry in file.parent.iterdir()] == ["a.txt"]
    with pytest.raises(ValueError, match="it is a folder"):
        output.write_text(file.parent, "x")


def test_what_does_not_fit_is_said_with_ranks_and_bytes():
    memory = [
        {"rank": rank, "stands_for": 8, "peak_bytes": peak, "by_category": {"weights": peak}}
        for rank, peak in ((0, 95.0), (8, 79.0), (16, 81.0))
    ]
    assert tables.overflow(memory, 95.0) is None
    sentence = tables.overflow(memory, 80.0)
    assert sentence is not None
    assert "ranks 0, 16 (16 in the job) need up to 95 B of 80 B" in sentence


RUN = "Llama-3(.1)-70B (12 layers) (12.4B) on 8 B200"
SUMMARY = {
    "step_time_s": 1.4,
    "interval_s": [1.33, 1.52],
    "nearest_measured": [{"run": RUN, "family": "context parallel", "error": -0.103},
        {"run": "gpt-22b (22.1B) on 8 A100", "family": "Megatron A100", "error": 0.021}],
    "tokens_per_s": 5851.0,
    "tflops_per_gpu": 140.5,
    "mfu": 0.45,
    "hfu": 0.6,
    "bubble": {"idle_share_of_step": 0.1, "idle_over_ideal": 0.11, "by_cause_s": {}},
    "machine": {"topology": "dgx_a100", "calibrated": [], "borrowed": {}},
    "time_s": {"compute": {"mean": 1.2, "max": 1.3}, "exposed": {"tp": {"mean": 0.1, "max": 0.2}},
        "hidden": {"tp": {"mean": 0.3, "max": 0.4}}, "waiting": {"tp": {"mean": 0.05, "max": 0.06}},
        "exposed_waiting": {"tp": {"mean": 0.01, "max": 0.02}}, "empty": {"mean": 0.1, "max": 0.2}},
    "memory": [{"rank": 0, "stands_for": 8, "peak_bytes": 2.0**36,
        "by_category": {"weights": 2.0**35}}],
    "simulation": {"ops": 12345, "ranks_simulated": 1},
    "host": {"prices": "eager", "kernel_s": 3e-5, "launch_s": 2e-5, "simulated": False},
}  # fmt: skip


def test_the_summary_table_has_every_figure(capsys):
    tables.show_summary(SUMMARY, capacity=2.0**35)
    said = capsys.readouterr().out
    for figure in ("1.4 s", "5,851", "140.5", "45.0%", "100.0 ms", "64.00 GiB", "does not fit"):
        assert figure in said, figure
    for figure in ("1.33 s to 1.52 s", RUN, "context parallel", "-10.3%", "+2.1%"):
        assert figure in said, figure
    assert "the CPU" not in said


def test_the_summary_says_that_the_gpu_waits_for_its_host(capsys):
    host = {**SUMMARY["host"], "launch_s": 4e-5}
    tables.show_summary({**SUMMARY, "host": host}, capacity=2.0**40)
    said = capsys.readouterr().out
    assert "kernels take 30 us on average, and the CPU 40 us to issue each (eager)" in said


@pytest.mark.parametrize("scale", [1.0, 0.013, 7e-6])
def test_no_cell_of_a_table_is_broken_at_80_columns(scale, capsys, monkeypatch):
    """Every row says its own name: a broken cell would make one without."""
    monkeypatch.setenv("COLUMNS", "80")
    names = ("embedding", "model", "pp", "tp")
    times = {name: {"mean": 0.4052 * scale, "max": 3.110 * scale} for name in names}
    time = {**SUMMARY["time_s"], **dict.fromkeys(("exposed", "hidden", "exposed_waiting"), times)}
    causes = {"warm_up": 0.1, "exposed_tp": 0.3, "waiting": 0.2, "exposed_pp": -1e-17}
    bubble = {**SUMMARY["bubble"], "by_cause_s": causes}
    tables.show_summary({**SUMMARY, "time_s": time, "bubble": bubble}, capacity=2.0**40)
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith("│")]
    unnamed = [line for line in lines if not line[1:20].strip()]
    assert len(unnamed) == 2  # how many ranks, and which
    assert max(map(len, out.splitlines())) <= 80
    order = [out.index(word) for word in ("tp: data moves", "waiting for a peer", "warm-up")]
    assert order == sorted(order)
    assert "pp: data moves" not in out


def test_a_long_name_is_folded_at_its_underscores_and_as_wide_as_there_is_room(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    name = "mbridge_25.09_pretrain_llama3_70b_h100"
    tables.show([(name, "10.388", "+2.7 %")], "table", "predicted, s", "error")
    lines = capsys.readouterr().out.splitlines()
    assert {len(line) for line in lines} == {50}  # figures and their headings take 26 of it
    cells = [line[2:26].strip() for line in lines if line.startswith("│")]
    assert cells == ["mbridge_25.09_pretrain_", "llama3_70b_h100"]


def test_what_is_equal_is_said_once(capsys):
    same = {"mean": 0.25, "max": 0.25}
    nothing = {"mean": -2.8e-17, "max": 0.0}
    time = {"compute": same, "empty": nothing, "exposed": {"tp": same}}
    time |= {"hidden": {"tp": nothing}, "exposed_waiting": {"tp": nothing}}
    tables.show_summary({**SUMMARY, "time_s": time}, capacity=2.0**40)
    out = capsys.readouterr().out
    assert "max" not in out
    assert "least" not in out
    assert "every rank" in out
    assert "ns" not in out.split("transfers")[1]
    assert "1 rank, stands for 8" in out


def test_ranks_that_stand_for_others_are_named(capsys):
    memory = [{**SUMMARY["memory"][0], "rank": rank} for rank in range(0, 128, 8)]
    tables.show_summary({**SUMMARY, "memory": memory}, capacity=2.0**40)
    out = capsys.readouterr().out
    assert "16 ranks, each stands for 8" in out
    assert "ranks 0, 8, 16, 24, ..., 112, 120" in out


def test_schedule_writes_torchs_csv(tmp_path, traincast):
    file = tmp_path / "order.csv"
    shape = ("--ranks", 4, "--microbatches", 8, "--chunks", 2)
    code, out, _ = traincast("schedule", "interleaved_1f1b", *shape, "--csv", file, "--json")
    assert code == 0
    rows = list(csv.reader(file.read_text().splitlines()))
    assert rows == json.loads(out)["orders"]
    shared = ROOT.parent / "shared/data/orders/torch/Interleaved1F1B_P4_M8_v2.compute.csv"
    if not shared.exists():
        pytest.skip("torch's own file lies beside the repository, in ../shared")
    theirs = csv.reader(shared.read_text().splitlines())
    assert rows == [[cell for cell in row if cell] for row in theirs]


def test_schedule_writes_both_files_or_none(tmp_path, traincast, monkeypatch):
    files = ("--csv", tmp_path / "deep/a.csv", "--plot", tmp_path / "deep/a.png")
    with monkeypatch.context() as patched:
        patched.setattr("sim.plots.save", lambda *_: 1 / 0)
        assert traincast(*PIPE, *files)[0] == 1
        assert list(tmp_path.iterdir()) == []
    assert traincast(*PIPE, *files)[0] == 0
    assert {file.name for file in (tmp_path / "deep").iterdir()} == {"a.csv", "a.png"}


def test_an_interrupted_run_leaves_nothing(recipe, tmp_path):
    """Ctrl-C while files are written, in a process of its own, as the keyboard sends it."""
    code = (
        "import os, signal, traces.own.perfetto as p, traincast.main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job\n"
        "p.write = lambda *a, **k: os.kill(os.getpid(), signal.SIGINT)\n"
        f"traincast.main.main(['run', {str(recipe)!r}, '--out', {str(tmp_path / 'out')!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "interrupted")
    assert [file.name for file in tmp_path.iterdir()] == ["recipe.toml"]


def test_schedule_takes_times_stage_by_stage(traincast):
    """GPipe by hand: forwards 5 + 6 + 7 and another 7, backwards 2 each, 3 + 1."""
    shape = ("--ranks", 3, "--microbatches", 2, "--times", "F=5/6/7,I=1,W=1/1/1", "--json")
    code, out, _ = traincast("schedule", "gpipe", *shape)
    assert (code, json.loads(out)["makespan_s"]) == (0, 25 + 8)
    chunked = ("--ranks", 2, "--microbatches", 4, "--chunks", 2, "--times", "F=5/6/7/8")
    assert traincast("schedule", "interleaved_1f1b", *chunked)[0] == 0


def test_schedule_gives_the_closed_form(traincast):
    shape = ("--ranks", 4, "--microbatches", 8, "--times", "F=5,I=4,W=3")
    code, out, _ = traincast("schedule", "one_f_one_b", *shape, "--json")
    assert code == 0
    assert json.loads(out)["makespan_s"] == (8 + 4 - 1) * (5 + 4 + 3)
    assert "makespan 132 s" in traincast("schedule", "one_f_one_b", *shape)[1]


def test_run_and_check_a_real_recipe(recipe, tmp_path, traincast):
    code, out, _ = traincast("run", recipe, "--json", "--out", tmp_path / "out")
    assert code == 0
    assert json.loads(out)["step_time_s"] > 0
    assert json.loads((tmp_path / "out/summary.json").read_text())["step_time_s"] > 0
    assert recipe_file.load(tmp_path / "out/recipe.toml") == recipe_file.load(recipe)
    code, out, _ = traincast("check", recipe, "--json")
    assert code == 0
    assert json.loads(out)["memory"][0]["peak_bytes"] > 0
    assert "step time" in traincast("run", recipe)[1]
    assert "memory of" in traincast("check", recipe)[1]


def test_check_says_how_messages_are_sent(recipe, traincast):
    """As the schedule's own runtime does, where there is a pipeline."""
    two = ["--set", "parallelism.tp=4", "--set", "parallelism.pp=2"]
    assert "messages: batched\n" in traincast("check", recipe, *two)[1]
    own = [*two, "--set", "schedule.name=zb_h1"]
    assert "messages: a stream per pair of ranks\n" in traincast("check", recipe, *own)[1]
    assert "messages" not in traincast("check", recipe)[1]
