"""Presets against the models that transformers builds of their sizes, on torch's meta device."""

from __future__ import annotations

import pytest

from sim.model.sizes import Model, Recurrence, total_parameters
from tests.sim.recipe.test_presets import PUBLISHED, read

CLASSES = {
    "llama4": "Llama4Text", "gpt-oss": "GptOss", "kimi": "DeepseekV3", "qwen3-next": "Qwen3Next",
    "qwen3-": "Qwen3", "nemotron-h": "NemotronH", "gemma3": "Gemma3Text", "glm-4.5": "Glm4Moe",
    "olmo2": "Olmo2", "phi-4": "Phi3",
}  # fmt: skip


def recurrent(m: Model, r: Recurrence) -> dict[str, object]:
    """The sizes of Nemotron-H's and Qwen3-Next's layers with a state."""
    letters = {"mamba2": "M", "full": "*", "none": "-"}
    return {
        "hybrid_override_pattern": "".join(letters[kind] for kind in m.pattern[: m.layers])
        if "mamba2" in m.pattern
        else "",
        "mamba_num_heads": r.heads,
        "mamba_head_dim": r.head_dim,
        "n_groups": r.groups,
        "ssm_state_size": r.state,
        "conv_kernel": r.convolution,
        "mlp_hidden_act": m.activation,
        "linear_num_value_heads": r.heads,
        "linear_num_key_heads": r.groups,
        "linear_value_head_dim": r.head_dim,
        "linear_key_head_dim": r.state,
        "linear_conv_kernel_dim": r.convolution,
        "shared_expert_intermediate_size": m.shared_experts * m.expert_ffn,
        "num_experts": m.experts,
    }


def stated(m: Model) -> dict[str, object]:
    """The sizes in the spelling of all configurations together; each class reads its own."""
    return {
        "num_hidden_layers": m.layers,
        "hidden_size": m.hidden,
        "num_attention_heads": m.heads,
        "num_key_value_heads": m.kv_heads,
        "vocab_size": m.vocab,
        "tie_word_embeddings": m.tied,
        "attention_bias": m.qkv_bias,
        "use_qk_norm": bool(m.qk_norm),
        "pad_token_id": 0,
        **({} if m.mla else {"head_dim": m.head_dim}),
        **(m.mla._asdict() if m.mla else {}),
        "intermediate_size": m.expert_ffn if m.experts and not m.dense_layers else m.ffn,
        "intermediate_size_mlp": m.ffn,
        "interleave_moe_layer_step": max(1, len(m.feed_forward)),
        "num_local_experts": m.experts,
        "n_routed_experts": m.experts,
        "n_shared_experts": m.shared_experts,
        "moe_intermediate_size": m.expert_ffn,
        "first_k_dense_replace": m.dense_layers,
        "num_experts_per_tok": m.topk,
        **(recurrent(m, m.recurrence) if m.recurrence else {}),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_the_parameters_of_the_model_that_transformers_builds(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model = read({"preset": name})
    family = next(family for start, family in CLASSES.items() if name.startswith(start))
    config = getattr(transformers, f"{family}Config")(**stated(model))
    with torch.device("meta"):
        built = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config)
    assert sum(p.numel() for p in built.parameters()) == total_parameters(model)
