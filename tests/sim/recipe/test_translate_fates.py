"""Every argument of Megatron-LM and torchtitan that the tables know meets the fate they give it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sim.recipe import translate
from sim.recipe.translate.fates import Ignored, fates

SIZES = (
    "--num-layers 24 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 "
    "--vocab-size 50257 --micro-batch-size 2 --global-batch-size 64"
)
CLUSTER = {"topology": "dgx_h100", "gpus": 32}
PP4 = "--pipeline-model-parallel-size 4"
TP2 = "--tensor-model-parallel-size 2"
MLA = "--multi-latent-attention"
MOE = "--num-experts 8"
AWARE = "--bf16 --use-distributed-optimizer --use-precision-aware-optimizer"
CHANGES = {  # what it changes: what is there before | the flag
    "--account-for-embedding-in-pipeline-split": f"{PP4} --num-layers 23 |",
    "--account-for-loss-in-pipeline-split": f"{PP4} --num-layers 23 |",
    "--accumulate-allreduce-grads-in-fp32": "--fp16 |",
    "--add-qkv-bias": "--disable-bias-linear |",
    "--attention-backend": "| unfused",
    "--attention-dropout": "| 0.0 left out",
    "--bf16": "|",
    "--clip-grad": "| 0.0",
    "--context-parallel-size": "| 2",
    "--cp-comm-type": "--context-parallel-size 2 | a2a",
    "--cpu-offloading-num-layers": "| 23",
    "--cross-entropy-fusion-impl": "--cross-entropy-loss-fusion | te",
    "--cross-entropy-loss-fusion": "--cross-entropy-fusion-impl te |",
    "--cuda-graph-impl": "| transformer_engine",
    "--data-parallel-sharding-strategy": "--use-megatron-fsdp | optim_grads",
    "--ddp-bucket-size": "| 1000000",
    "--decoder-first-pipeline-num-layers": f"{PP4} | 3",
    "--decoder-last-pipeline-num-layers": f"{PP4} | 3",
    "--delay-wgrad-compute": "|",
    "--disable-bias-linear": "|",
    "--disable-fp8-wgrad": "--fp8-format hybrid | refused",
    "--enable-cuda-graph": "|",
    "--enable-optimizer-post-validation": f"{PP4} |",
    "--encoder-seq-length": "no --seq-length | 1024",
    "--exp-avg-dtype": f"{AWARE} | bf16",
    "--exp-avg-sq-dtype": f"{AWARE} | fp8",
    "--expert-model-parallel-size": f"{MOE} | 4",
    "--expert-tensor-parallel-size": f"{MOE} {TP2} | 1",
    "--external-cuda-graph": "|",
    "--ffn-hidden-size": "| 8192",
    "--first-last-layers-bf16": "--fp8-format hybrid | refused",
    "--flash-attention-version": "--attention-backend flash | 3",
    "--fp16": "|",
    "--fp8-format": "| hybrid",
    "--fp8-param-gather": "--fp8-format hybrid |",
    "--fp8-recipe": "--fp8-format hybrid | tensorwise",
    "--global-batch-size": "| 128",
    "--grad-reduce-in-bf16": "--bf16 |",
    "--group-query-attention": "--num-query-groups 8 |",
    "--hidden-dropout": "| 0.0",
    "--hidden-size": "| 2048",
    "--hierarchical-context-parallel-sizes": "--context-parallel-size 8 --cp-comm-type a2a+p2p "
    "--hierarchical-context-parallel-sizes 4 2 | 2 4",
    "--kv-channels": "| 64",
    "--kv-lora-rank": f"{MLA} | 512",
    "--main-grads-dtype": "| bf16",
    "--main-params-dtype": f"{AWARE} | fp16",
    "--make-vocab-size-divisible-by": "| 64",
    "--max-position-embeddings": "| 4096",
    "--micro-batch-size": "| 1",
    "--microbatch-group-size-per-virtual-pipeline-stage": f"{PP4} "
    "--num-virtual-stages-per-pipeline-rank 2 | 8",
    "--moe-expert-capacity-factor": f"{MOE} | 1.5",
    "--moe-ffn-hidden-size": f"{MOE} | 1024",
    "--moe-layer-freq": f"{MOE} | ([0]*3+[1]*21)",
    "--moe-layer-recompute": f"{MOE} |",
    "--moe-permute-fusion": f"{MOE} |",
    "--moe-router-topk": f"{MOE} | 1",
    "--moe-shared-expert-intermediate-size": f"{MOE} --moe-ffn-hidden-size 1024 | 2048",
    "--moe-use-legacy-grouped-gemm": f"{MOE} |",
    "--mtp-num-layers": "| 1",
    "--multi-latent-attention": "|",
    "--no-bias-swiglu-fusion": "--swiglu |",
    "--no-fp8-wgrad": "--fp8-format hybrid | refused",
    "--no-gradient-accumulation-fusion": "|",
    "--no-overlap-p2p-communication": f"{PP4} --num-virtual-stages-per-pipeline-rank 2 |",
    "--no-position-embedding": "| refused",
    "--normalization": "| RMSNorm",
    "--num-attention-heads": "| 16",
    "--num-distributed-optimizer-instances": "--use-distributed-optimizer | 2",
    "--num-experts": "| 8",
    "--num-layers": "| 12",
    "--num-layers-per-virtual-pipeline-stage": f"{PP4} | 3",
    "--num-query-groups": "--group-query-attention | 8",
    "--num-virtual-stages-per-pipeline-rank": f"{PP4} | 2",
    "--optimizer": "| sgd",
    "--optimizer-cpu-offload": "|",
    "--optimizer-offload-fraction": "--optimizer-cpu-offload | 0.5",
    "--overlap-cpu-optimizer-d2h-h2d": "--optimizer-cpu-offload |",
    "--overlap-grad-reduce": "|",
    "--overlap-moe-expert-parallel-comm": f"{PP4} --num-virtual-stages-per-pipeline-rank 2 |",
    "--overlap-param-gather": "--use-distributed-optimizer --overlap-grad-reduce |",
    "--padded-vocab-size": "| 50304",
    "--pipeline-model-parallel-layout": f"{PP4} | Et*5|t*7|t*7|t*5L",
    "--pipeline-model-parallel-size": "| 4",
    "--position-embedding-type": "| rope",
    "--q-lora-rank": f"{MLA} | 512",
    "--qk-head-dim": f"{MLA} | 64",
    "--qk-pos-emb-head-dim": f"{MLA} | 32",
    "--quick-geglu": "|",
    "--recompute-activations": "|",
    "--recompute-granularity": "| full",
    "--recompute-method": "--recompute-granularity full --recompute-num-layers 3 | block",
    "--recompute-modules": "--recompute-granularity selective | mlp",
    "--recompute-num-layers": "--recompute-granularity full --recompute-method block | 3",
    "--seq-length": "| 1024",
    "--sequence-parallel": f"{TP2} |",
    "--squared-relu": "|",
    "--standalone-embedding-stage": f"{PP4} |",
    "--swiglu": "|",
    "--tensor-model-parallel-size": "| 4",
    "--tokenizer-model": "| meta-llama/Meta-Llama-3-8B",
    "--tokenizer-type": "no --vocab-size | Llama2Tokenizer",
    "--torch-fsdp2-no-reshard-after-forward": "--use-torch-fsdp2 |",
    "--tp-comm-overlap": f"{TP2} --sequence-parallel |",
    "--tp-only-amax-red": "--fp8-format hybrid |",
    "--transformer-impl": "| local",
    "--untie-embeddings-and-output-weights": "|",
    "--use-custom-fsdp": "--data-parallel-sharding-strategy optim |",
    "--use-distributed-optimizer": "|",
    "--use-flash-attn": "--transformer-impl local |",
    "--use-megatron-fsdp": "--data-parallel-sharding-strategy optim |",
    "--use-precision-aware-optimizer": "--bf16 --use-distributed-optimizer |",
    "--use-rotary-position-embeddings": "|",
    "--use-torch-fsdp2": "|",
    "--use-tp-pp-dp-mapping": "|",
    "--v-head-dim": f"{MLA} | 64",
    "--vocab-size": "| 32000",
}


def megatron(more: str) -> tuple[dict[str, Any], Ignored]:
    words = SIZES.split()
    if more.startswith("no "):
        _, flag, more = [*more.split(maxsplit=2), ""][:3]
        at = words.index(flag)
        words = words[:at] + words[at + 2 :]
    data = {"megatron": [*words, *more.split()], "cluster": CLUSTER}
    out, ignored = translate.merge(data, Path())
    return out, ignored.get("megatron", Ignored())


@pytest.mark.parametrize("flag", sorted(fates("megatron").translated))
def test_a_flag_that_is_translated_changes_the_recipe(flag: str) -> None:
    before, _, value = CHANGES[flag].partition("|")
    if value == " refused":
        with pytest.raises(ValueError, match=f"^megatron: {flag} is "):
            megatron(f"{before} {flag}")
    elif value.endswith(" left out"):  # unless it says the same as another one
        assert flag in megatron(f"{flag} {value.split()[0]}")[1].left_out
    else:
        plain = "" if before.startswith("no ") else before
        assert megatron(f"{before} {flag} {value}")[0] != megatron(plain)[0]


@pytest.mark.parametrize("fate", ["harmless", "left_out"])
def test_a_flag_that_is_ignored_changes_nothing_and_is_named(fate: str) -> None:
    table, plain = fates("megatron"), megatron("")[0]
    flags = getattr(table, fate)
    out, ignored = megatron(" ".join(f"{flag} 1" for flag in flags))
    assert out == plain
    assert (ignored.harmless, ignored.left_out) == (
        (list(flags), {}) if fate == "harmless" else ([], dict(flags))
    )


@pytest.mark.parametrize("flag", sorted(fates("megatron").refused))
def test_a_flag_that_makes_another_job_is_refused_with_the_reason(flag: str) -> None:
    table = fates("megatron")
    said = (
        f"megatron: {flag} describes another job ({table.refused[flag]}), which is not translated"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        megatron(f"{flag} 7")
    for value in table.unless.get(flag, []):
        out, ignored = megatron(f"{flag} {value}")
        assert (out, ignored.harmless) == (megatron("")[0], [flag])


@pytest.mark.parametrize("program", ["megatron", "torchtitan"])
def test_a_name_has_one_fate(program: str) -> None:
    table = fates(program)
    parts = (table.translated, table.harmless, table.left_out, table.refused, table.renamed)
    names = [name for part in parts for name in part]
    assert len(names) == len(set(names)) == len(table.known())
    assert set(table.unless) <= set(table.refused)
    assert set(table.renamed.values()) <= set(names)


def test_a_flag_that_is_read_is_translated() -> None:
    """What the translating modules speak of stands in the table, and the other way round."""
    folder = Path(translate.__file__).parent
    read: set[str] = set()
    features = (folder.parents[1] / "strategies").glob("*/*.py")
    for path in (*folder.glob("megatron*.py"), folder / "vocabulary.py", *features):
        read |= set(re.findall(r"\"(--[a-z0-9][\w-]+)\"", path.read_text()))
    assert read == fates("megatron").translated


PP4 = "parallelism.pipeline_parallel_degree = 4\n"
OLD = "experimental.pipeline_parallel_degree = 4\n"
FP8 = 'model.converters = ["float8"]\n'
LINEAR = 'model.converters = ["quantize.linear.float8"]\n'
TOKENS = "training.num_tokens_per_microbatch_per_dp_rank = 4096\n"
LAYERS = [[f"layers.{k}" for k in range(a, b)] for a, b in ((0, 6), (6, 15), (15, 24), (24, 32))]
KEYS = {  # what it changes: lines before, its value
    "activation_checkpoint.mode": ("", '"full"'),
    "activation_checkpoint.selective_ac_option": ("", '"op"'),
    "compile.components": ("compile.enable = true\n", '["loss"]'),
    "compile.enable": ("", "true"),
    "float8.enable_float8_linear": ("", "true"),
    "float8.enable_fsdp_float8_all_gather": (FP8, "true"),
    "float8.recipe_name": (FP8, '"rowwise"'),
    "model.converters": ("", '["mx"]'),
    "model.flavor": ("", '"70B"'),
    "model.name": ("", "refused"),
    "optimizer.foreach": ("", "true"),
    "optimizer.fused": ("", "false"),
    "optimizer.implementation": ("", '"foreach"'),
    "optimizer.name": ("", '"Muon"'),
    "parallelism.context_parallel_degree": ("", "2"),
    "parallelism.context_parallel_rotate_method": ("parallelism.context_parallel_degree = 2\n",
        '"alltoall"'),
    "parallelism.data_parallel_replicate_degree": ("", "2"),
    "parallelism.data_parallel_shard_degree": ("", "4"),
    "parallelism.enable_async_tensor_parallel": ("parallelism.tensor_parallel_degree = 2\n",
        "true"),
    "parallelism.enable_sequence_parallel": ("parallelism.tensor_parallel_degree = 2\n", "false"),
    "parallelism.expert_parallel_degree": ("", "2"),
    "parallelism.expert_tensor_parallel_degree": ("parallelism.expert_parallel_degree = 2\n", "2"),
    "parallelism.fsdp_reshard_after_forward": ("", '"never"'),
    "parallelism.module_fqns_per_model_part": (PP4, str(LAYERS)),
    "parallelism.num_pp_microbatches": (PP4 + TOKENS, "8"),
    "parallelism.pipeline_parallel_degree": ("", "4"),
    "parallelism.pipeline_parallel_first_stage_less_layers": (PP4, "3"),
    "parallelism.pipeline_parallel_last_stage_less_layers": (PP4, "3"),
    "parallelism.pipeline_parallel_layers_per_stage": (PP4
        + 'parallelism.pipeline_parallel_schedule = "Interleaved1F1B"\n', "3"),
    "parallelism.pipeline_parallel_microbatch_size": (PP4, "2"),
    "parallelism.pipeline_parallel_microbatches": (PP4, "4"),
    "parallelism.pipeline_parallel_schedule": (PP4, '"GPipe"'),
    "parallelism.pipeline_parallel_schedule_csv": (PP4, '"o.csv"'),
    "parallelism.pipeline_parallel_split_points": (PP4, '["layers.6", "layers.15", "layers.24"]'),
    "parallelism.tensor_parallel_degree": ("", "2"),
    "quantize.linear.float8.enable_fsdp_float8_all_gather": (LINEAR, "true"),
    "quantize.linear.float8.recipe_name": (LINEAR, '"rowwise"'),
    "training.data_parallel_type": ("", '"ddp"'),
    "training.dtype": ('training.mixed_precision_reduce = "bfloat16"\n', '"bfloat16"'),
    "training.enable_cpu_offload": ("", "true"),
    "training.global_batch_size": ("", "512"),
    "training.local_batch_size": ("", "4"),
    "training.mixed_precision_param": ("", '"float32"'),
    "training.mixed_precision_reduce": ("", '"bfloat16"'),
    "training.num_tokens_per_microbatch_per_dp_rank": ("", "4096"),
    "training.num_tokens_per_train_step": (TOKENS, "1048576"),
    "training.seq_len": ("", "4096"),
}  # fmt: skip


def titan(text: str, folder: Path) -> tuple[dict[str, Any], Ignored]:
    lines = text if "model.flavor" in text else f'model.flavor = "8B"\n{text}'
    (folder / "job.toml").write_text(lines)
    out, ignored = translate.merge({"torchtitan": "job.toml", "cluster": CLUSTER}, folder)
    return out, ignored.get("job.toml", Ignored())


@pytest.mark.parametrize("key", sorted(fates("torchtitan").translated))
def test_a_key_that_is_translated_changes_the_recipe(key: str, tmp_path: Path) -> None:
    before, value = KEYS[key]
    if value == "refused":
        with pytest.raises(ValueError, match=r"^job.toml: there are no numbers for the model x"):
            titan(f'{key} = "x"', tmp_path)
    else:
        changed = titan(f"{before}{key} = {value}", tmp_path)
        assert changed[0] != titan(before, tmp_path)[0]
        assert changed[1] == Ignored()


@pytest.mark.parametrize("key", sorted(fates("torchtitan").refused))
def test_a_key_that_makes_another_job_is_refused_with_the_reason(key: str, tmp_path: Path) -> None:
    table = fates("torchtitan")
    said = f"job.toml: {key} describes another job ({table.refused[key]}), which is not translated"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        titan(f'{key} = "another"', tmp_path)
    for value in table.unless.get(key, []):
        out, ignored = titan(f"{key} = {json.dumps(value)}", tmp_path)
        assert (out, ignored.harmless) == (titan("", tmp_path)[0], [key])


def test_keys_that_are_ignored_change_nothing_and_are_named(tmp_path: Path) -> None:
    table = fates("torchtitan")
    keys = [*table.harmless, *table.left_out]
    out, ignored = titan("".join(f"{key} = 1\n" for key in keys), tmp_path)
    assert out == titan("", tmp_path)[0]
    assert sorted(ignored.harmless) == sorted(table.harmless)
    assert ignored.left_out == table.left_out


SIZE = "parallelism.pipeline_parallel_microbatch_size"
SAID = {"parallelism.pipeline_parallel_split_points", "parallelism.pipeline_parallel_degree", SIZE}


@pytest.mark.parametrize("key", sorted(fates("torchtitan").renamed))
def test_a_renamed_key_is_the_other_one(key: str, tmp_path: Path) -> None:
    """But for a pipeline's in [experimental], without which one has an older default."""
    table = fates("torchtitan")
    name = table.renamed[key]
    before, value = KEYS.get(name, ("", "true"))
    if name in table.refused:
        value = json.dumps(table.unless[name][0])
    if "pipeline" in key:
        before = "".join(f"{one} = {KEYS[one][1]}\n" for one in SAID - {name, SIZE})
        before += f"{SIZE} = 1\n" if "microbatches" not in name else ""
        value = "4" if name.endswith("degree") else value
    both = [titan(f"{before}{one} = {value}", tmp_path) for one in (key, name)]
    assert both[0] == both[1]
