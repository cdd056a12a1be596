"""What each group of Megatron-LM's flags means, and what Megatron takes where none is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.recipe import recipe_file, translate
from sim.recipe.recipe import Recipe
from sim.recipe.translate.fates import Ignored

SIZES = (
    "--num-layers 24 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 "
    "--vocab-size 50257 --micro-batch-size 2 --global-batch-size 64 --bf16"
)
CLUSTER = {"topology": "dgx_h100", "gpus": 32}
PP4 = "--pipeline-model-parallel-size 4"
AWARE = "--use-distributed-optimizer --use-precision-aware-optimizer"


def tables(more: str = "", **own: Any) -> dict[str, Any]:
    """The recipe's tables for the sizes above and more arguments."""
    data = {"megatron": f"{SIZES} {more}".split(), "cluster": CLUSTER, **own}
    return translate.merge(data, Path())[0]


def parse(more: str = "", **own: Any) -> Recipe:
    return recipe_file.parse({"megatron": f"{SIZES} {more}".split(), "cluster": CLUSTER, **own})


def ignored(more: str) -> Ignored:
    data = {"megatron": f"{SIZES} {more}".split(), "cluster": CLUSTER}
    return translate.merge(data, Path())[1].get("megatron", Ignored())


def test_nothing_given_is_what_megatron_takes() -> None:
    """Learned positions, dropout, biases, tied ends; nothing is sharded or overlapped."""
    job = parse()
    model, split, training = job.model, job.parallelism, job.training
    assert (model.ffn, model.kv_heads, model.head_dim, model.vocab_padding) == (16384, 32, 128, 128)
    assert (model.norm, model.position, model.dropout) == ("layer", "learned", 0.1)
    assert model.bias
    assert model.qkv_bias
    assert model.tied
    assert not model.gated
    assert (split.tp, split.pp, split.dp, split.zero, split.sp) == (1, 1, 32, 0, False)
    assert not split.overlap_grad_reduce
    assert not split.overlap_param_gather
    assert (split.p2p, split.overlap_p2p, split.bucket_mb) == ("batched", False, 160)
    assert (training.dtype, training.grad_dtype, training.recompute) == ("bf16", "fp32", "none")


MODEL = {
    "--swiglu": {"gated": True, "activation": "silu", "ffn": 10880},  # 64 x floor(8/3 h / 64)
    "--swiglu --ffn-hidden-size 11008": {"gated": True, "ffn": 11008},
    "--squared-relu": {"gated": False, "activation": "relu2", "ffn": 16384},
    "--group-query-attention --num-query-groups 8": {"kv_heads": 8},
    "--kv-channels 64": {"head_dim": 64},
    "--kv-channels 64 --multi-latent-attention": {"head_dim": None},
    "--normalization RMSNorm": {"norm": "rms", "bias": True},
    "--disable-bias-linear": {"bias": False, "qkv_bias": False},
    "--disable-bias-linear --add-qkv-bias": {"bias": False, "qkv_bias": True},
    "--position-embedding-type rope": {"position": "rope"},
    "--use-rotary-position-embeddings": {"position": "rope"},
    "--max-position-embeddings 4096": {"position": "learned", "positions": 4096},
    "--untie-embeddings-and-output-weights": {"tied": False},
    "--make-vocab-size-divisible-by 64": {"vocab": 50257, "vocab_padding": 64},
    "--padded-vocab-size 50304": {"vocab": 50304, "vocab_padding": 1},
    "--tokenizer-type NullTokenizer": {"vocab": 50257},
    "--attention-dropout 0 --hidden-dropout 0.0": {"dropout": 0.0},
    "--attention-backend unfused": {"attention": "unfused"},
    "--transformer-impl local": {"attention": "unfused"},
    "--transformer-impl local --use-flash-attn": {"attention": "flash2"},
    "--attention-backend auto --flash-attention-version 3": {"attention": "flash"},
    "--attention-backend fused": {"attention": "cudnn"},
    "--attention-backend flash": {"attention": "flash2"},
    "--attention-backend flash --flash-attention-version 3": {"attention": "flash3"},
    "--transformer-impl local --attention-backend flash": {"attention": "flash2"},
    "--num-layers 12": {"layers": 12},  # the last one counts
    "--num-query-groups=4 --group-query-attention": {"kv_heads": 4},
    "--mtp-num-layers 1": {"mtp": 1},
    "--multi-latent-attention --kv-lora-rank 512 --q-lora-rank 1536": {"mla": {"kv_lora_rank": 512,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}},
    "--num-experts 8 --moe-ffn-hidden-size 1024 --moe-shared-expert-intermediate-size 2048 "
        "--moe-layer-freq ([0]*3+[1]*21) --moe-expert-capacity-factor 1.25": {"experts": 8,
        "topk": 2, "expert_ffn": 1024, "shared_experts": 2, "dense_layers": 3,
        "capacity_factor": 1.25},
    "--num-experts 8 --moe-router-topk 1 --moe-layer-freq 1": {"topk": 1, "expert_ffn": 16384},
}  # fmt: skip
PARALLELISM = {
    "--tensor-model-parallel-size 4 --sequence-parallel": {"tp": 4, "sp": True},
    "--sequence-parallel": {"tp": 1, "sp": False},  # which Megatron switches off without tp
    "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap": {"tp_overlap": True},
    "--pipeline-model-parallel-size 4": {"pp": 4, "p2p": "batched"},
    "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2": {"p2p": "pair"},
    "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 "
    "--no-overlap-p2p-communication": {"p2p": "batched"},
    "--context-parallel-size 2": {"cp": 2, "cp_kind": "ring"},
    "--context-parallel-size 2 --cp-comm-type all_gather": {"cp_kind": "allgather"},
    "--context-parallel-size 2 --cp-comm-type a2a": {"cp_kind": "ulysses"},
    "--context-parallel-size 8 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 4": {
        "cp_kind": "usp",
        "ulysses": 2,
    },
    "--num-experts 8 --expert-model-parallel-size 4 --tensor-model-parallel-size 2": {"ep": 4,
        "etp": 2},
    "--num-experts 8 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1": {"etp": 1},
    "--use-distributed-optimizer": {"zero": 1, "overlap_grad_reduce": False},
    "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather": {"zero": 1,
        "overlap_grad_reduce": True, "overlap_param_gather": True},
    "--use-distributed-optimizer --num-distributed-optimizer-instances 4": {"zero": 1,
        "optimizer_instances": 4},
    "--num-distributed-optimizer-instances 1": {"zero": 0, "optimizer_instances": None},
    "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads": {"zero": 2},
    "--use-custom-fsdp --data-parallel-sharding-strategy optim_grads_params": {"zero": 3},
    "--use-megatron-fsdp": {"zero": 3},
    "--use-custom-fsdp": {"zero": 0},
    "--use-torch-fsdp2": {"fsdp": {"kind": "fsdp2", "reshard_after_forward": True}},
    "--ddp-bucket-size 10000000": {"bucket_mb": 40.0},
    "--ddp-bucket-size 10000000 --grad-reduce-in-bf16": {"bucket_mb": 20.0},
    "--use-tp-pp-dp-mapping": {"order": "tp-cp-ep-pp-dp"},
}  # fmt: skip
SCHEDULE = {
    "": {"name": "one_f_one_b"},
    f"{PP4} --num-layers-per-virtual-pipeline-stage 2": {"name": "interleaved_1f1b", "chunks": 3},
    f"{PP4} --num-virtual-stages-per-pipeline-rank 3 "
    "--microbatch-group-size-per-virtual-pipeline-stage 5": {"chunks": 3, "group": 5},
    f"{PP4} --num-virtual-stages-per-pipeline-rank 2 --overlap-moe-expert-parallel-comm "
    "--delay-wgrad-compute": {"overlap": True, "deferred_wgrad": True},
    f"{PP4} --decoder-first-pipeline-num-layers 5 --decoder-last-pipeline-num-layers 3": {
        "layers_per_stage": [5, 8, 8, 3]
    },
    f"{PP4} --decoder-last-pipeline-num-layers 6 --num-virtual-stages-per-pipeline-rank 2": {
        "layers_per_stage": [3] * 8
    },
    f"{PP4} --num-layers 22 --account-for-embedding-in-pipeline-split "
    "--account-for-loss-in-pipeline-split --num-layers-per-virtual-pipeline-stage 3": {
        "chunks": 2,
        "layers_per_stage": [2, 3, 3, 3, 3, 3, 3, 2],
    },
    f"{PP4} --num-layers 16 --pipeline-model-parallel-layout Et*3|(tt|)*6tL": {"chunks": 2,
        "layers_per_stage": [3, 2, 2, 2, 2, 2, 2, 1]},
    f"{PP4} --num-layers 8 --pipeline-model-parallel-layout Et*3|t*3|t*2|L": {
        "layers_per_stage": [3, 3, 2, 0]
    },
    f"{PP4} --standalone-embedding-stage": {"layers_per_stage": [0, 8, 8, 8]},
    f"{PP4} --num-layers 6 --account-for-embedding-in-pipeline-split "
    "--account-for-loss-in-pipeline-split --num-virtual-stages-per-pipeline-rank 2": {
        "layers_per_stage": [0, 1, 1, 1, 1, 1, 1, 0]
    },
}  # fmt: skip
TRAINING = {
    "--grad-reduce-in-bf16": {"grad_dtype": "bf16"},
    "--main-grads-dtype bf16": {"grad_dtype": "bf16"},
    f"{AWARE}": {"optimizer_state": {"master": "remainder", "first": "fp32", "second": "fp32"}},
    f"{AWARE} --exp-avg-dtype bf16 --exp-avg-sq-dtype fp8 --main-params-dtype fp16": {
        "optimizer_state": {"master": "fp16", "first": "bf16", "second": "fp8"}
    },
    f"{AWARE} --fp8-format hybrid --fp8-param-gather": {"optimizer_state": {"master": "fp32",
        "first": "fp32", "second": "fp32"}},
    f"{AWARE} --optimizer-cpu-offload": {"offload": "optimizer", "optimizer_state": None},
    "--accumulate-allreduce-grads-in-fp32": {"grad_dtype": "fp32"},
    "--recompute-granularity selective": {"recompute": "selective"},
    "--recompute-activations --recompute-modules core_attn": {"recompute": "selective"},
    "--recompute-activations --recompute-modules moe_act mlp": {"recompute": {"modules": ["moe_act",
        "mlp"]}},
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1": {
        "recompute": "full"
    },
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2": {
        "recompute": {"method": "uniform", "layers": 2}
    },
    f"--recompute-granularity full --recompute-method block --recompute-num-layers 6 {PP4}": {
        "recompute": "full"
    },
    f"--recompute-granularity full --recompute-method block --recompute-num-layers 5 {PP4}": {
        "recompute": {"method": "block", "layers": 5}
    },
    "--fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather": {"fp8": {"format": "hybrid",
        "recipe": "tensorwise", "params": True}},
    "--fp8-format e4m3 --tp-only-amax-red": {"fp8": {"format": "e4m3", "recipe": "delayed",
        "params": False, "amax": "tp"}},
    "--cpu-offloading-num-layers 4": {"offload": "activations"},
    "--optimizer-cpu-offload": {"offload": "optimizer"},
    "--optimizer-cpu-offload --optimizer-offload-fraction 0.4 --overlap-cpu-optimizer-d2h-h2d": {
        "offload": {"optimizer": 0.4, "overlap": True}
    },
    "--optimizer muon": {"optimizer": "muon"},
    "--clip-grad 0.0": {"clip": False},
    "--enable-optimizer-post-validation": {"clip": "post"},
    "--clip-grad 1.0": {"clip": None},
    "": {"weight_gradients": "cached"},
    "--transformer-impl local": {"weight_gradients": None},
    "--no-gradient-accumulation-fusion": {"weight_gradients": None},
    "--use-torch-fsdp2": {"weight_gradients": "passing"},
}  # fmt: skip
GROUPS = {
    "model": MODEL, "parallelism": PARALLELISM, "schedule": SCHEDULE, "training": TRAINING,
}  # fmt: skip
CASES = [(section, more, said) for section, cases in GROUPS.items() for more, said in cases.items()]


@pytest.mark.parametrize(("section", "more", "said"), CASES)
def test_each_flag_is_its_key(section: str, more: str, said: dict[str, Any]) -> None:
    found = tables(more)[section]
    assert {key: found.get(key) for key in said} == said
    assert ignored(more) == Ignored()


def test_fp16_keeps_gradients_as_they_are_made_unless_told() -> None:
    words = SIZES.replace("--bf16", "--fp16").split()
    for more, kind in (([], "fp16"), (["--accumulate-allreduce-grads-in-fp32"], "fp32")):
        job = recipe_file.parse({"megatron": [*words, *more], "cluster": CLUSTER})
        assert (job.training.dtype, job.training.grad_dtype) == ("fp16", kind)


def test_the_batch_is_one_microbatch_per_replica_unless_given() -> None:
    words = SIZES.replace("--global-batch-size 64", "--tensor-model-parallel-size 4").split()
    job = recipe_file.parse({"megatron": words, "cluster": CLUSTER})
    assert (job.parallelism.dp, job.training.global_batch) == (8, 16)


def test_buckets_grow_with_many_replicas() -> None:
    """A million parameters per replica where that is more than forty million."""
    big = {"topology": "dgx_h100", "gpus": 64}
    words = [*SIZES.split(), "--overlap-grad-reduce"]
    job = recipe_file.parse(
        {"megatron": words, "cluster": big, "training": {"global_batch": 128}},
    )
    assert job.parallelism.bucket_mb == 64 * 4


def test_what_is_not_said_is_ignored_and_named() -> None:
    more = "--lr 1e-4 --data-path a b c --qk-layernorm --overlap-moe-expert-parallel-comm"
    found = ignored(more)
    assert found.harmless == ["--lr", "--data-path"]
    assert found.left_out == {
        "--qk-layernorm": "norms of queries and keys",
        "--overlap-moe-expert-parallel-comm": "needs several stages per pipeline rank",
    }
    apart = ignored("--attention-dropout 0.0")
    assert list(apart.left_out) == ["--attention-dropout"]  # unlike --hidden-dropout


def test_what_is_not_known_is_ignored_by_those_who_insist() -> None:
    data = {"megatron": f"{SIZES} --no-such-flag 1".split(), "cluster": CLUSTER}
    found = translate.merge({**data, "allow_unknown": True}, Path())[1]["megatron"]
    assert found == Ignored(unknown=["--no-such-flag"])
    assert recipe_file.parse(data, overrides={"allow_unknown": True}) == parse()
    with pytest.raises(ValueError, match=r"^megatron: Megatron-LM has no --no-such-flag;"):
        recipe_file.parse(data)
    with pytest.raises(ValueError, match=r"^allow_unknown = 1 must be true or false$"):
        recipe_file.parse({**data, "allow_unknown": 1})
