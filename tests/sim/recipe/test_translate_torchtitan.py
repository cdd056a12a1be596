"""torchtitan's job configurations: whole recipes by hand, each key, and what is refused."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sim.recipe import recipe_file, translate
from sim.recipe.translate.fates import Ignored

CLUSTER = {"topology": "dgx_h100", "gpus": 16}
TITAN = """
[job]
dump_folder = "out"
[model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
lr = 3e-4
[training]
local_batch_size = 8
seq_len = 4096
[parallelism]
data_parallel_shard_degree = 1
data_parallel_replicate_degree = 2
tensor_parallel_degree = 2
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "interleaved1F1B"
[activation_checkpoint]
mode = "full"
"""
BY_HAND = """
[model]
preset = "llama3-8b"
attention = "sdpa"
fused = false
kernels = { rope = "complex", loss = "torch" }
sequence = 4096
[cluster]
topology = "dgx_h100"
gpus = 16
[parallelism]
tp = 2
pp = 4
dp = 2
sp = true
p2p = "pair"
bucket_mb = 104.8576  # DDP, 100 MiB
[schedule]
name = "interleaved_1f1b"
chunks = 2
layers_per_stage = [4, 5, 4, 4, 4, 4, 4, 3]  # 32 + 2 over 8 stages, less embedding and head
[training]
global_batch = 16
recompute = "full"
[simulation]
host = "eager"
"""


def tables(text: str, tmp_path: Path, **own: Any) -> dict[str, Any]:
    """The tables of a recipe whose configuration is llama3 8B, with these lines."""
    if "[model]" not in text:
        text = f'model.name = "llama3"\nmodel.flavor = "8B"\n{text}'
    (tmp_path / "titan.toml").write_text(text)
    data = {"torchtitan": "titan.toml", "cluster": CLUSTER, **own}
    return translate.merge(data, tmp_path)[0]


def test_a_configuration_is_the_recipe_that_one_would_write(tmp_path: Path) -> None:
    (tmp_path / "titan.toml").write_text(TITAN)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('torchtitan = "titan.toml"\n[cluster]\ntopology = "dgx_h100"\ngpus = 16\n')
    assert recipe_file.dump(recipe_file.load(recipe)) == recipe_file.dump(
        recipe_file.parse(tomllib.loads(BY_HAND))
    )
    assert recipe_file.ignored(recipe) == {
        "titan.toml": Ignored(["job.dump_folder", "optimizer.lr"])
    }


def test_nothing_given_is_what_torchtitan_takes(tmp_path: Path) -> None:
    found = tables("", tmp_path)
    assert found["model"] == {
        "preset": "llama3-8b",
        "sequence": 2048,
        "attention": "sdpa",
        "fused": False,
        "kernels": {"rope": "complex", "loss": "torch"},
    }
    assert found["parallelism"]["fsdp"] == {"kind": "fsdp2", "reshard_after_forward": True}
    assert found["schedule"] == {}
    assert found["simulation"] == {"host": "eager"}
    assert found["training"] == {
        "micro_batch": 8,
        "global_batch": 128,  # of 16 ranks that all are sharded over
        "dtype": "bf16",
        "grad_dtype": "fp32",
        "recompute": {"every": 2},
        "optimizer": "adam",
    }


FLOAT8 = {"format": "hybrid", "recipe": "tensorwise", "params": False, "gather": True}
BFLOAT16 = {"master": "none", "first": "bf16", "second": "bf16"}
PP4 = "parallelism.pipeline_parallel_degree = 4\n"
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("simulation", "compile.enable = true", {"host": "compiled"}),
    ("simulation", 'compile.enable = true\ncompile.components = ["loss"]', {"host": "eager"}),
    ("parallelism", "parallelism.tensor_parallel_degree = 4", {"tp": 4, "sp": True}),
    ("parallelism",
     "parallelism.tensor_parallel_degree = 4\nparallelism.enable_async_tensor_parallel = true",
     {"tp_overlap": "copies"}),
    ("parallelism", 'parallelism.fsdp_reshard_after_forward = "never"',
     {"fsdp": {"kind": "fsdp2", "reshard_after_forward": False}}),
    ("parallelism", PP4 + 'parallelism.fsdp_reshard_after_forward = "always"',
     {"fsdp": {"kind": "fsdp2", "reshard_after_forward": True}}),
    ("parallelism", PP4, {"fsdp": {"kind": "fsdp2", "reshard_after_forward": False}}),
    ("parallelism", "parallelism.data_parallel_shard_degree = 8\n"
     "parallelism.data_parallel_replicate_degree = 2",
     {"dp": 16, "fsdp": {"kind": "fsdp2", "reshard_after_forward": True, "shard": 8}}),
    ("parallelism", "parallelism.context_parallel_degree = 2", {"cp": 2, "cp_kind": "allgather"}),
    ("parallelism", "parallelism.context_parallel_degree = 2\n"
     'parallelism.context_parallel_rotate_method = "alltoall"', {"cp_kind": "ring"}),
    ("parallelism", "parallelism.expert_parallel_degree = 4", {"ep": 4, "etp": 1}),
    ("schedule", PP4, {"name": "one_f_one_b", "layers_per_stage": [8, 9, 8, 7]}),
    ("schedule", PP4 + 'parallelism.pipeline_parallel_schedule = "ZBVZeroBubble"',
     {"name": "zb_v", "chunks": None}),
    ("schedule", PP4 + "parallelism.pipeline_parallel_schedule = 'Interleaved1F1B'\n"
     "parallelism.pipeline_parallel_layers_per_stage = 3",
     {"chunks": 3, "layers_per_stage": [2, *[3] * 9, 2, 1]}),
    ("schedule", PP4
     + 'parallelism.pipeline_parallel_split_points = ["layers.6","layers.15","layers.24"]',
     {"layers_per_stage": [6, 9, 9, 8]}),
    ("schedule", PP4 + 'parallelism.pipeline_parallel_schedule_csv = "o.csv"', {"csv": "o.csv"}),
    ("training", PP4, {"micro_batch": 1, "global_batch": 32}),
    ("training", PP4 + "parallelism.pipeline_parallel_microbatch_size = 2", {"micro_batch": 2}),
    ("training", "training.batch_size = 2", {"micro_batch": 2, "global_batch": 32}),
    ("training", "training.global_batch_size = 256", {"micro_batch": 8, "global_batch": 256}),
    ("training", 'training.mixed_precision_param = "float32"', {"dtype": "fp32"}),
    ("training", 'training.dtype = "bfloat16"\ntraining.mixed_precision_reduce = "bfloat16"',
     {"grad_dtype": "bf16", "optimizer_state": BFLOAT16}),
    ("training", 'training.dtype = "float32"', {"optimizer_state": None}),
    ("training", "training.enable_cpu_offload = true", {"offload": "parameters"}),
    ("training", 'activation_checkpoint.mode = "none"', {"recompute": "none"}),
    ("training", 'activation_checkpoint.selective_ac_option = "op"',
     {"recompute": {"modules": ["op"]}}),
    ("training", 'activation_checkpoint.selective_ac_option = "1"', {"recompute": "full"}),
    ("training", 'optimizer.name = "Muon"', {"optimizer": "Muon"}),
    ("training", 'model.converters = ["float8"]\nfloat8.recipe_name = "rowwise"',
     {"fp8": {"format": "hybrid", "recipe": "rowwise", "params": False, "gather": False}}),
    ("training", 'model.converters = "float8"', {"fp8": FLOAT8}),
    ("training", "training.enable_float8_linear = true", {"fp8": FLOAT8}),
    ("model", '[model]\nflavor = "7B"\nname = "llama2"', {"preset": "llama2-7b"}),
    ("training", 'model.converters = ["mx"]', {"fp8": {"format": "e4m3", "recipe": "mxfp8"}}),
    ("training", 'model.converters = ["float8"]\nfloat8.enable_fsdp_float8_all_gather = true',
     {"fp8": {"format": "hybrid", "recipe": "tensorwise", "params": True, "gather": True}}),
]  # fmt: skip


@pytest.mark.parametrize(("section", "text", "said"), CASES)
def test_each_key_is_the_recipes(
    section: str, text: str, said: dict[str, Any], tmp_path: Path
) -> None:
    found = tables(text, tmp_path)[section]
    assert {key: found.get(key) for key in said} == said


def test_a_model_of_the_recipe_takes_the_place_of_the_flavor(tmp_path: Path) -> None:
    own = {"preset": "gpt-22b", "sequence": 1024}
    found = tables('[model]\nflavor = "debugmodel"', tmp_path, model=own)
    assert found["model"] == own | {"attention": "sdpa"}


def test_paths_start_at_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    text = 'model.flavor = "8B"\nparallelism.pipeline_parallel_schedule_csv = "o.csv"\n' + PP4
    (tmp_path / "deep/titan.toml").write_text(text)
    found, _ = translate.merge({"torchtitan": "deep/titan.toml", "cluster": CLUSTER}, tmp_path)
    assert found["schedule"]["csv"] == "deep/o.csv"


def test_a_sharded_job_meets_the_ordinary_check(tmp_path: Path) -> None:
    """Whatever becomes of FSDP, zero = 1 in the recipe takes its place."""
    (tmp_path / "titan.toml").write_text(TITAN.replace("shard_degree = 1", "shard_degree = -1"))
    data = {"torchtitan": "titan.toml", "cluster": CLUSTER, "parallelism": {"zero": 1}}
    job = recipe_file.parse(data, tmp_path, {"cluster.gpus": 32})
    assert (job.parallelism.zero, job.parallelism.dp, job.parallelism.fsdp) == (1, 4, None)


OLD = """
[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 8
tensor_parallel_degree = 4
data_parallel_shard_degree = 1
[experimental]
pipeline_parallel_degree = 2
"""
NEW = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 8
[parallelism]
data_parallel_shard_degree = 1
tensor_parallel_degree = 4
pipeline_parallel_degree = 2
pipeline_parallel_microbatch_size = SIZE
pipeline_parallel_split_points = ["layers.16"]
"""


@pytest.mark.parametrize(("more", "size"), [("", 4), ("pipeline_parallel_microbatches = 4\n", 2)])
def test_a_configuration_of_2024_is_the_same_job(more: str, size: int, tmp_path: Path) -> None:
    """Degrees in [training] and [experimental]; as many microbatches as ranks unless given."""
    old, new = tables(OLD + more, tmp_path), tables(NEW.replace("SIZE", str(size)), tmp_path)
    assert old == new
    assert (old["parallelism"]["tp"], old["parallelism"]["pp"]) == (4, 2)
    assert old["training"]["micro_batch"] == size


def test_a_configuration_of_2026_counts_tokens(tmp_path: Path) -> None:
    text = PP4 + "parallelism.num_pp_microbatches = 8\ntraining.max_context_length = 4096\n"
    found = tables(text + "training.num_tokens_per_microbatch_per_dp_rank = 8192\n", tmp_path)
    assert found["model"]["sequence"] == 4096
    assert (found["training"]["micro_batch"], found["training"]["global_batch"]) == (2, 2 * 8 * 4)


def test_stages_of_2024_are_even_and_the_rest_is_in_the_middle(tmp_path: Path) -> None:
    """generate_split_points of December 2024: 30 layers on 4 ranks are 7, 8, 8 and 7."""
    own = {"preset": "llama3-8b", "layers": 30}
    text = "experimental.pipeline_parallel_degree = 4\ntraining.batch_size = 8\n"
    assert tables(text, tmp_path, model=own)["schedule"]["layers_per_stage"] == [7, 8, 8, 7]


def test_replicas_of_2024_are_ddp(tmp_path: Path) -> None:
    for degree, dp in (("-1", 16), ("16", 16)):
        text = f'training.data_parallel_type = "ddp"\ntraining.data_parallel_degree = {degree}\n'
        found = tables(text, tmp_path)
        assert "fsdp" not in found["parallelism"]
        assert found["training"]["global_batch"] == 8 * dp


def test_a_fsdp_pipeline_reduces_once_a_step(tmp_path: Path) -> None:
    """torch's stages turn the synchronisation of FSDP2 off until the last microbatch."""
    text = TITAN.replace("replicate_degree = 2", "replicate_degree = 1")
    (tmp_path / "titan.toml").write_text(text.replace("shard_degree = 1", "shard_degree = 2"))
    job = recipe_file.parse({"torchtitan": "titan.toml", "cluster": CLUSTER}, tmp_path)
    assert job.parallelism.accumulate is True


REFUSED = {
    "training.local_batch_size = 0": "titan.toml: training.local_batch_size = 0 must be at least 1",
    "parallelism.data_parallel_shard_degree = 1\nparallelism.data_parallel_replicate_degree = 16\n"
    "training.global_batch_size = 256": "titan.toml: the batch is 2 microbatches per replica, "
    "and torchtitan's DDP sums gradients after each; that is not simulated, raise "
    "training.local_batch_size",
    'training.dtype = "bfloat16"': 'titan.toml: training.dtype = "bfloat16" is only simulated '
    'with training.mixed_precision_reduce = "bfloat16"',
    "parallelism.tensor_paralel_degree = 4": "titan.toml: torchtitan has no "
    "parallelism.tensor_paralel_degree; did you mean parallelism.tensor_parallel_degree? "
    "--allow-unknown ignores unknown arguments",
    "parallelism.tensor_parallel_degree = 4\ntraining.tensor_parallel_degree = 2": "titan.toml: "
    "parallelism.tensor_parallel_degree and training.tensor_parallel_degree contradict each other; "
    "leave one out",
    "experimental.pipeline_parallel_degree = 3": "titan.toml: "
    "parallelism.pipeline_parallel_microbatches = 3 does not divide the batch of 8 samples per "
    "replica",
    "training.num_tokens_per_microbatch_per_dp_rank = 4095": "titan.toml: "
    "training.num_tokens_per_microbatch_per_dp_rank = 4095 is not a multiple of a sequence's 2048 "
    "tokens",
    PP4 + 'parallelism.module_fqns_per_model_part = [["layers.0"]]': "titan.toml: "
    "parallelism.module_fqns_per_model_part must list layers.0 to layers.31 in order, for a "
    "multiple of 4 stages",
    "[model]": "titan.toml: there are no numbers for the model llama3 debugmodel; there are llama3 "
    "8B, llama3 70B, llama3 405B, llama2 7B, llama2 70B, or write [model] with a preset, hf or the "
    "numbers",
    "training.seq_len = true": "titan.toml: training.seq_len = true must be a whole number",
    "parallelism.tensor_parallel_degree = 0": "titan.toml: parallelism.tensor_parallel_degree = 0 "
    "must be at least 1",
    'activation_checkpoint.mode = "some"': 'titan.toml: activation_checkpoint.mode = "some" is not '
    "simulated; there are none, full, selective",
    PP4 + 'parallelism.pipeline_parallel_schedule = "X"': "titan.toml: "
    'parallelism.pipeline_parallel_schedule = "X" is not simulated; there are 1F1B, GPipe, '
    "Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV",
    PP4 + "parallelism.pipeline_parallel_layers_per_stage = 5": "titan.toml: 32 layers in 7 stages "
    "do not fit 4 pipeline ranks",
    PP4 + 'parallelism.pipeline_parallel_split_points = ["a"]': "titan.toml: "
    'parallelism.pipeline_parallel_split_points = ["a"] must name layers.N in order, for a '
    "multiple of 4 stages",
    PP4 + "training.global_batch_size = 64": "titan.toml: training.global_batch_size makes 16 "
    "samples per replica, but the pipeline is flushed after 8; that is not simulated, "
    "leave it out",
}


@pytest.mark.parametrize(("text", "said"), REFUSED.items())
def test_what_cannot_be_said_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        tables(text, tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a = [", "titan.toml is not TOML: "),
        (b"\xff\xfe", "titan.toml: it is not text in UTF-8"),
        (b"a = " + b"[" * 9999, "titan.toml nests its tables too deeply to be read"),
    ],
)
def test_a_malformed_file_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "titan.toml").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(said)):
        translate.merge({"torchtitan": "titan.toml", "cluster": CLUSTER}, tmp_path)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", {"rope": "complex", "loss": "torch"}),
        ("compile.enable = true", {"rope": "complex", "loss": "fused"}),
        ('compile.enable = true\ncompile.components = ["model"]',
         {"rope": "complex", "loss": "torch"}),
    ],
)  # fmt: skip
def test_the_compiler_fuses_norms_gates_and_the_loss(
    lines: str, said: dict[str, str], tmp_path: Path
) -> None:
    model = tables(lines, tmp_path)["model"]
    assert (model["kernels"], model.get("fused")) == (said, None if lines else False)
