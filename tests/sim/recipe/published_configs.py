"""The sizes that published config.json files state, by preset, and by name where there is none."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]
_SLIDING, _FULL = "sliding_attention", "full_attention"


def _llama4(**text: object) -> Config:
    return {
        "model_type": "llama4",
        "tie_word_embeddings": False,
        "vision_config": {"model_type": "llama4_vision_model", "num_hidden_layers": 34},
        "text_config": {
            "model_type": "llama4_text",
            "attention_chunk_size": 8192,
            "hidden_size": 5120,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "no_rope_layers": [],
            "num_attention_heads": 40,
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
            "vocab_size": 202048,
            **text,
        },
    }


def _gpt_oss(layers: int, experts: int) -> Config:
    return {
        "model_type": "gpt_oss",
        "num_hidden_layers": layers,
        "num_local_experts": experts,
        "experts_per_token": 4,
        "num_experts_per_tok": 4,
        "layer_types": [_SLIDING, _FULL] * (layers // 2),
        "sliding_window": 128,
    }


def _gemma3(**text: object) -> Config:
    return {
        "model_type": "gemma3",
        "vision_config": {"model_type": "siglip_vision_model"},
        "text_config": {"model_type": "gemma3_text", "sliding_window": 1024, **text},
    }


def _qwen3(**sizes: object) -> Config:
    return {"model_type": "qwen3", "head_dim": 128, "num_key_value_heads": 8, **sizes}


def _glm(layers: int, experts: int, **sizes: object) -> Config:
    return {
        "model_type": "glm4_moe",
        "head_dim": 128,
        "num_hidden_layers": layers,
        "n_routed_experts": experts,
        "attention_bias": True,
        "num_nextn_predict_layers": 1,
        **sizes,
    }


def _olmo2(**sizes: object) -> Config:
    return {"model_type": "olmo2", "vocab_size": 100352, **sizes}


def _nemotron(pattern: str, **sizes: object) -> Config:
    return {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": pattern,
        "num_hidden_layers": len(pattern),
        "chunk_size": 128,
        "n_groups": 8,
        "num_key_value_heads": 8,
        **sizes,
    }


_MIXERS_56B = "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-"
CONFIGS: dict[str, Config] = {
    "llama4-scout": _llama4(num_local_experts=16, interleave_moe_layer_step=1),
    "llama4-maverick": _llama4(num_local_experts=128, interleave_moe_layer_step=2),
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    "kimi-k2": {
        "model_type": "kimi_k2",
        "first_k_dense_replace": 1,
        "hidden_size": 7168,
        "n_routed_experts": 384,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "num_nextn_predict_layers": 0,
        "vocab_size": 163840,
    },
    "qwen3-8b": _qwen3(intermediate_size=12288, num_hidden_layers=36),
    "qwen3-32b": _qwen3(
        hidden_size=5120, intermediate_size=25600, num_attention_heads=64, num_hidden_layers=64
    ),
    "qwen3-235b-a22b": {
        "model_type": "qwen3_moe",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_attention_heads": 64,
        "num_hidden_layers": 94,
        "head_dim": 128,
        "mlp_only_layers": [],
    },
    "gemma3-4b": _gemma3(hidden_size=2560, intermediate_size=10240, num_hidden_layers=34),
    "gemma3-12b": _gemma3(
        hidden_size=3840,
        intermediate_size=15360,
        num_attention_heads=16,
        num_hidden_layers=48,
        num_key_value_heads=8,
    ),
    "gemma3-27b": _gemma3(
        hidden_size=5376,
        intermediate_size=21504,
        num_attention_heads=32,
        num_hidden_layers=62,
        num_key_value_heads=16,
        head_dim=128,
    ),
    "glm-4.5": _glm(
        92,
        160,
        hidden_size=5120,
        intermediate_size=12288,
        moe_intermediate_size=1536,
        first_k_dense_replace=3,
        use_qk_norm=True,
    ),
    "glm-4.5-air": _glm(46, 128, use_qk_norm=False),
    "olmo2-7b": _olmo2(),
    "olmo2-13b": _olmo2(
        hidden_size=5120, intermediate_size=13824, num_attention_heads=40, num_hidden_layers=40
    ),
    "olmo2-32b": _olmo2(
        hidden_size=5120,
        intermediate_size=27648,
        num_attention_heads=40,
        num_hidden_layers=64,
        num_key_value_heads=8,
    ),
    "phi-4": {
        "model_type": "phi3",
        "hidden_size": 5120,
        "intermediate_size": 17920,
        "num_attention_heads": 40,
        "num_hidden_layers": 40,
        "num_key_value_heads": 10,
        "vocab_size": 100352,
    },
    "qwen3-next-80b-a3b": {
        "model_type": "qwen3_next",
        "intermediate_size": 5120,
        "full_attention_interval": 4,
        "mlp_only_layers": [],
    },
    "nemotron-h-8b": _nemotron("M-M-M-M*-" + "M-M-M-M-M*-" * 3 + "M-M-M-M-M-"),
    "nemotron-h-56b": _nemotron(
        _MIXERS_56B,
        hidden_size=8192,
        intermediate_size=32768,
        num_attention_heads=64,
        mamba_num_heads=256,
        ssm_state_size=256,
    ),
    "jamba-1.5-mini": {"model_type": "jamba"},
    "jamba-1.5-large": {
        "model_type": "jamba",
        "hidden_size": 8192,
        "intermediate_size": 24576,
        "num_attention_heads": 64,
        "num_hidden_layers": 72,
        "mamba_dt_rank": 512,
    },
    "mixtral-8x7b": {"model_type": "mixtral"},
    "deepseek-v3": {"model_type": "deepseek_v3"},
}
"""Each gives the model of the preset of its name."""
OTHERS: dict[str, tuple[Config, int]] = {
    "DeepSeek-V2-Lite": (
        {
            "model_type": "deepseek_v2",
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
            "q_lora_rank": None,
        },
        15_706_484_224,
    ),
    "DeepSeek-V2": (
        {
            "model_type": "deepseek_v2",
            "hidden_size": 5120,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "n_routed_experts": 160,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
        },
        235_741_434_880,
    ),
    "Qwen1.5-MoE-A2.7B": ({"model_type": "qwen2_moe"}, 14_315_784_192),
    "Qwen3-30B-A3B": (
        {"model_type": "qwen3_moe", "num_hidden_layers": 48, "head_dim": 128},
        30_532_122_624,
    ),
    "MiniMax-M2": ({"model_type": "minimax_m2"}, 228_689_748_992),
    "Qwen3-VL-4B": (
        {
            "model_type": "qwen3_vl",
            "tie_word_embeddings": True,
            "text_config": {
                "model_type": "qwen3_vl_text",
                "hidden_size": 2560,
                "intermediate_size": 9728,
                "num_hidden_layers": 36,
                "num_key_value_heads": 8,
            },
        },
        4_022_468_096,
    ),
    "Qwen3.5-35B-A3B": ({"model_type": "qwen3_5_moe"}, 34_660_610_688),
    "Qwen3.5-9B": ({"model_type": "qwen3_5"}, 8_953_803_264),
    "Nemotron-3-Nano-30B-A3B": (
        _nemotron(
            "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            hidden_size=2688,
            num_key_value_heads=2,
            intermediate_size=1856,
            mamba_num_heads=64,
            n_routed_experts=128,
            num_experts_per_tok=6,
            moe_intermediate_size=1856,
            moe_shared_expert_intermediate_size=3712,
        ),
        31_577_937_344,
    ),
}
"""Those of models without a preset, and the parameters that transformers builds of them."""
