"""All arguments of a launch script of DeepSeek-V3 together: what they say, and what fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.recipe import recipe_file, translate
from sim.runs.check import check

SCRIPT = """
--tensor-model-parallel-size 1 --pipeline-model-parallel-size 8 --expert-model-parallel-size 32
--context-parallel-size 1 --expert-tensor-parallel-size 1
--decoder-first-pipeline-num-layers 4 --decoder-last-pipeline-num-layers 3
--recompute-granularity selective --recompute-modules mla_up_proj moe mlp layernorm
--optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d
--overlap-grad-reduce --overlap-param-gather --overlap-moe-expert-parallel-comm
--seq-length 4096 --micro-batch-size 1 --global-batch-size 2048
--use-distributed-optimizer --main-grads-dtype fp32 --main-params-dtype fp32
--sequence-parallel --use-flash-attn --transformer-impl transformer_engine
--attention-dropout 0.0 --hidden-dropout 0.0 --clip-grad 1.0 --qk-layernorm --bf16
--disable-bias-linear --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432
--num-attention-heads 128 --kv-channels 128 --max-position-embeddings 4096
--position-embedding-type rope --rotary-base 10000 --normalization RMSNorm --swiglu
--untie-embeddings-and-output-weights --multi-latent-attention
--num-experts 256 --moe-layer-freq ([0]*3+[1]*58) --moe-ffn-hidden-size 2048
--moe-shared-expert-intermediate-size 2048 --moe-router-topk 8 --moe-grouped-gemm
--q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128
--mtp-num-layers 1 --vocab-size 129280 --make-vocab-size-divisible-by 3232
--fp8-recipe mxfp8 --fp8-format e4m3
"""
"""Of Megatron-MoE-ModelZoo's script for B200, with the selective recomputation that it has as a
comment and, as its layout has stages without layers, uneven ends."""
DATA: dict[str, Any] = {
    "megatron": SCRIPT.split(),
    "cluster": {"topology": "dgx_b200", "gpus": 256},
}


def test_all_of_it_is_said() -> None:
    tables, ignored = translate.merge(DATA, Path())
    assert tables["training"] == {
        "micro_batch": 1,
        "global_batch": 2048,
        "dtype": "bf16",
        "grad_dtype": "fp32",
        "recompute": {"modules": ["mla_up_proj", "moe", "mlp", "layernorm"]},
        "fp8": {"format": "e4m3", "recipe": "mxfp8", "params": False},
        "offload": {"optimizer": 1.0, "overlap": True},
        "weight_gradients": "cached",
    }
    model = tables["model"]
    assert (model["mtp"], model["dense_layers"], model["shared_experts"]) == (1, 3, 1)
    assert model["mla"]["q_lora_rank"] == 1536
    assert tables["schedule"]["layers_per_stage"] == [4, *[9] * 6, 3]
    assert list(ignored["megatron"].left_out) == [
        "--qk-layernorm",
        "--overlap-moe-expert-parallel-comm",
    ]


@pytest.mark.slow
def test_it_is_legal_and_what_is_switched_on_shows_in_memory() -> None:
    """But for the optimizer on the host, which multi-token prediction does not go with yet.

    Placeholders are there, and the last rank keeps a second head's inputs and fp32 logits.
    """
    offload = ("--optimizer-cpu-offload", "--overlap-cpu-optimizer-d2h-h2d")
    words = [word for word in SCRIPT.split() if word not in offload]
    at = words.index("--mtp-num-layers")
    whole, single = (
        check(recipe_file.parse({**DATA, "megatron": of}))["memory"][-1]["by_category"]
        for of in (words, words[:at] + words[at + 2 :])
    )
    assert whole["placeholders"] == single["placeholders"] > 0
    more = whole["logits"] - single["logits"]
    assert more == 4096 * (4 * 129280 + 2 * 2 * 7168)
    with pytest.raises(ValueError, match=r"model\.mtp = 1 is not simulated with training\.offload"):
        recipe_file.parse(DATA)
