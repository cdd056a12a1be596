"""How transformers' configuration classes spell a model, family by family, as plain tables.

Defaults are those of each class, because files may leave these keys out.
"""

from __future__ import annotations

from typing import Any

ACTIVATION = {"silu": "silu", "swish": "silu", "relu2": "relu2", "gelu": "gelu"}
ACTIVATION |= dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu")

_LLAMA = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "intermediate_size": 11008,
    "hidden_act": "silu",
    "vocab_size": 32000,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": None,
    "use_sliding_window": True,
}
_MISTRAL = {**_LLAMA, "num_key_value_heads": 8, "intermediate_size": 14336, "sliding_window": 4096}
_QWEN2 = {
    **_LLAMA,
    "num_key_value_heads": 32,
    "intermediate_size": 22016,
    "vocab_size": 151936,
    "use_sliding_window": False,
}
_GPT2 = {
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "n_inner": None,
    "n_positions": 1024,
    "activation_function": "gelu_new",
    "vocab_size": 50257,
    "tie_word_embeddings": True,
    "resid_pdrop": 0.1,
}
_MIXTRAL = {
    **_LLAMA,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
}
_QWEN3_MOE = {
    **_QWEN2,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "intermediate_size": 6144,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
    "mlp_only_layers": None,
}
_DEEPSEEK_V3 = {
    **_LLAMA,
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_nextn_predict_layers": None,  # in the published file, but not in transformers
}
_GLM4_MOE = {
    **_LLAMA,
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "num_hidden_layers": 46,
    "num_attention_heads": 96,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "moe_intermediate_size": 1408,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 1,
    "use_qk_norm": False,
    "num_nextn_predict_layers": None,  # in the published files, but not in transformers
}
_PHI3 = {
    **_LLAMA,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "vocab_size": 32064,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen3": {**_QWEN2, "head_dim": 128},
    "mixtral": _MIXTRAL,
    "qwen3_moe": _QWEN3_MOE,
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "glm4_moe": _GLM4_MOE,
    "olmo2": {**_LLAMA, "vocab_size": 50304},
    "phi3": _PHI3,
}
"""Defaults of each family's configuration class in transformers, for keys that files leave out."""


_BOTH_KEYS = {"vocab": "vocab_size", "tied": "tie_word_embeddings"}
_GPT2_KEYS = {
    **_BOTH_KEYS,
    "layers": "n_layer",
    "hidden": "n_embd",
    "heads": "n_head",
    "ffn": "n_inner",
    "positions": "n_positions",
    "dropout": "resid_pdrop",
}
LLAMA_KEYS = {
    **_BOTH_KEYS,
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "qkv_bias": "attention_bias",
    # transformers' attention_bias also adds a bias to the output projection, which has no key here
    "bias": "mlp_bias",
}
_MIXTRAL_KEYS = {
    **LLAMA_KEYS,
    "experts": "num_local_experts",
    "topk": "num_experts_per_tok",
    "expert_ffn": "intermediate_size",
}
_QWEN3_MOE_KEYS = {
    **LLAMA_KEYS,
    "experts": "num_experts",
    "topk": "num_experts_per_tok",
    "expert_ffn": "moe_intermediate_size",
}
_DEEPSEEK_KEYS = {
    **{key: name for key, name in LLAMA_KEYS.items() if key != "head_dim"},
    "experts": "n_routed_experts",
    "topk": "num_experts_per_tok",
    "expert_ffn": "moe_intermediate_size",
    "shared_experts": "n_shared_experts",
    "dense_layers": "first_k_dense_replace",
    "mtp": "num_nextn_predict_layers",
}
KEYS = {
    "gpt2": _GPT2_KEYS,
    "mixtral": _MIXTRAL_KEYS,
    "qwen3_moe": _QWEN3_MOE_KEYS,
    "deepseek_v3": _DEEPSEEK_KEYS,
    "kimi_k2": _DEEPSEEK_KEYS,
    "glm4_moe": {**_DEEPSEEK_KEYS, "head_dim": "head_dim"},
}
"""The keys of a recipe's model in each family's spelling; other families spell as Llama."""
ALWAYS: dict[str, dict[str, object]] = {
    "qwen2": {"qkv_bias": True},
    "olmo2": {"qk_norm": "whole", "norm_place": "after"},
}
"""What holds for every model of a family beside what its files state."""
LATENT = ("deepseek_v3", "kimi_k2")
"""Families of latent attention."""
MLA_KEYS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_DEEPSEEK_ONLY: dict[str, tuple[object, ...]] = {
    "moe_layer_freq": (1,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
}
ONLY: dict[str, dict[str, tuple[object, ...]]] = {
    "qwen3_moe": {"decoder_sparse_step": (1,), "mlp_only_layers": (None, [])},
    "deepseek_v3": _DEEPSEEK_ONLY,
    "kimi_k2": _DEEPSEEK_ONLY,
    "glm4_moe": {"use_qk_norm": (True, False), "mlp_bias": (False,)},
}
"""Keys of a family that ask for what is not simulated, with the values that are simulated."""
MAY_BE_NULL = (
    "n_inner",
    "num_key_value_heads",
    "head_dim",
    "n_shared_experts",
    "num_nextn_predict_layers",
)
GPT2_IS = {"gated": False, "norm": "layer", "qkv_bias": True, "bias": True, "position": "learned"}
LLAMA_IS = {"gated": True, "norm": "rms", "position": "rope", "dropout": 0.0}
"""What holds for every model of these families; the second for all but GPT-2."""
