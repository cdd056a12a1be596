"""The model that Megatron-LM's arguments describe; see :mod:`sim.recipe.translate.megatron`."""

from __future__ import annotations

import re
from typing import Any

from sim.keys.refusals import brief
from sim.recipe.translate.flags import Flags
from sim.recipe.translate.vocabulary import vocabulary

_POSITION = {"learned_absolute": "learned", "rope": "rope", "none": "none"}
_POSITION |= dict.fromkeys(("yarn", "mrope"), "rope")
_BACKEND = {"auto": "flash", "flash": "flash2", "fused": "cudnn"}
_BACKEND |= dict.fromkeys(("unfused", "local"), "unfused")


def model(flags: Flags, *, sized: bool = False) -> dict[str, Any]:
    """Return the section [model], without a vocabulary where the recipe has one (``sized``).

    Raises InputError, in one sentence, for a missing flag.
    """
    out = {
        "layers": flags.needed("--num-layers"),
        "hidden": flags.needed("--hidden-size"),
        "heads": flags.needed("--num-attention-heads"),
        "tied": not flags.on("--untie-embeddings-and-output-weights"),
        **sequence(flags),
        **_attention(flags),
        **_mlp(flags),
        **vocabulary(flags, given=sized),
    }
    kind = {"LayerNorm": "layer", "RMSNorm": "rms"}
    out["norm"] = flags.choice("--normalization", kind, "layer")
    out["bias"] = not flags.on("--disable-bias-linear")
    out["qkv_bias"] = out["bias"] or flags.on("--add-qkv-bias")
    out["dropout"] = _dropout(flags, "--hidden-dropout")
    routed = flags.whole("--num-experts", least=0)
    chosen = _kernels(flags, bool(routed))
    out |= {"kernels": chosen} if chosen else {}
    return {**out, **(_experts(flags) if routed else {})}


def _kernels(flags: Flags, routed: bool) -> dict[str, str]:
    """Return what Megatron-Core fuses.

    With or without --moe-grouped-gemm experts are one product each: Transformer Engine runs them
    with cuBLAS on four streams (transformer_engine/common/gemm/cublaslt_gemm.cu).
    """
    impl = flags.text("--cross-entropy-fusion-impl") or "native"  # which is several kernels too
    fused = flags.on("--cross-entropy-loss-fusion") and impl == "te"
    out = {"loss": "fused"} if fused else {}
    if routed and not flags.on("--moe-use-legacy-grouped-gemm"):
        out["experts"] = "sequential"
    if routed and not flags.on("--moe-permute-fusion"):
        out["permute"] = "eager"
    return out


def sequence(flags: Flags) -> dict[str, Any]:
    """Return the key of tokens per sample."""
    flags.one_of("--seq-length", "--encoder-seq-length")
    return {"sequence": flags.whole("--encoder-seq-length") or flags.needed("--seq-length")}


def left_out(flags: Flags) -> dict[str, str]:
    """Return flags whose value has no key: one dropout stands for both."""
    apart = _dropout(flags, "--attention-dropout") != _dropout(flags, "--hidden-dropout")
    return {"--attention-dropout": "another share than --hidden-dropout"} if apart else {}


def _dropout(flags: Flags, flag: str) -> float:
    found = flags.number(flag)
    return 0.1 if found is None else found


def _kernel(flags: Flags) -> str:
    """Return the kernel of attention; flash is FlashAttention-2 where no version says otherwise."""
    local = flags.text("--transformer-impl") == "local"
    own = "flash2" if flags.on("--use-flash-attn") else "unfused"
    kernel = flags.choice("--attention-backend", _BACKEND, own if local else "flash")
    third = kernel == "flash2" and flags.text("--flash-attention-version") == "3"
    return "flash3" if third else kernel


def _attention(flags: Flags) -> dict[str, Any]:
    out: dict[str, Any] = {"attention": _kernel(flags)}
    if flags.on("--group-query-attention"):
        out["kv_heads"] = flags.whole("--num-query-groups") or 1
    latent = flags.on("--multi-latent-attention")  # it has widths of its own
    if (width := flags.whole("--kv-channels")) and not latent:
        out["head_dim"] = width
    position = flags.choice("--position-embedding-type", _POSITION, "learned")
    out["position"] = "rope" if flags.on("--use-rotary-position-embeddings") else position
    if flags.on("--no-position-embedding") and out["position"] == "learned":
        flags.refuse("--no-position-embedding is --position-embedding-type none now")
    if out["position"] == "learned" and (rows := flags.whole("--max-position-embeddings")):
        out["positions"] = rows
    if latent:
        out["mla"] = _latent(flags)
    return out


def _latent(flags: Flags) -> dict[str, Any]:
    """Return the widths of latent attention, named as in DeepSeek's config.json."""
    out = {
        "kv_lora_rank": flags.whole("--kv-lora-rank") or 32,
        "qk_nope_head_dim": flags.whole("--qk-head-dim") or 128,
        "qk_rope_head_dim": flags.whole("--qk-pos-emb-head-dim") or 64,
        "v_head_dim": flags.whole("--v-head-dim") or 128,
    }
    rank = flags.whole("--q-lora-rank")
    return {**out, "q_lora_rank": rank} if rank else out


def _width(flags: Flags) -> int:
    """Return the MLP's inner width; default for SwiGLU: 8/3 of hidden, cut to a multiple of 64."""
    hidden = flags.needed("--hidden-size")
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if flags.on("--swiglu") else 4 * hidden
    return flags.whole("--ffn-hidden-size") or usual


def _mlp(flags: Flags) -> dict[str, Any]:
    flags.one_of("--swiglu", "--squared-relu", "--quick-geglu")
    kind = "silu" if flags.on("--swiglu") else "relu2" if flags.on("--squared-relu") else "gelu"
    gated = flags.on("--swiglu", "--quick-geglu")
    out: dict[str, Any] = {"ffn": _width(flags), "gated": gated, "activation": kind}
    apart = flags.on("--swiglu") and flags.on("--no-bias-swiglu-fusion")
    return {**out, "fused": "except_gate"} if apart else out


def _experts(flags: Flags) -> dict[str, Any]:
    width = flags.whole("--moe-ffn-hidden-size") or _width(flags)
    out: dict[str, Any] = {
        "experts": flags.needed("--num-experts"),
        "topk": flags.whole("--moe-router-topk") or 2,
        "expert_ffn": width,
    }
    shared = flags.whole("--moe-shared-expert-intermediate-size", least=0) or 0
    if shared % width:
        flags.refuse(
            f"--moe-shared-expert-intermediate-size = {shared} is not a multiple of "
            f"--moe-ffn-hidden-size = {width}, which is not simulated"
        )
    if shared:
        out["shared_experts"] = shared // width
    if capacity := flags.number("--moe-expert-capacity-factor"):
        out["capacity_factor"] = capacity
    if dense := _dense(flags):
        out["dense_layers"] = dense
    return out


def _dense(flags: Flags) -> int:
    """Return how many layers without experts come first, such as 3 of ``([0]*3+[1]*58)``."""
    said = flags.text("--moe-layer-freq") or "1"
    pattern = re.sub(r"\s", "", said).strip("()")
    found = re.fullmatch(r"\[0\](?:\*(\d+))?\+\[1\](?:\*(\d+))?", pattern)
    if re.fullmatch(r"1|\[1\](\*\d+)?", pattern):
        return 0
    if found is None:
        flags.refuse(
            f"--moe-layer-freq = {brief(said)} is not simulated; only first layers can be dense, "
            "such as ([0]*3+[1]*58)"
        )
    return int(found[1] or 1)
