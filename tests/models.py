"""Models that several test files vary."""

from __future__ import annotations

from sim.model import Mla, Model

MLA = Mla(q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=10)
GATED = Model(
    name="gated",
    layers=3,
    hidden=64,
    heads=8,
    kv_heads=8,
    head_dim=12,
    ffn=112,
    gated=True,
    vocab=128,
    tied=False,
    norm="rms",
    attention="flash",
    activation="silu",
    qkv_bias=False,
    bias=False,
    position="rope",
    dropout=0.0,
    vocab_padding=1,
    positions=0,
)
"""Untied, without biases, with rotary positions, as Llama and its kin are."""
