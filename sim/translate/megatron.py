"""What do Megatron-LM's arguments say in the words of a recipe?

Meanings and defaults are those of ``megatron/training/arguments.py`` (2025;
github.com/NVIDIA/Megatron-LM), where nothing else is said. ``megatron_fates.toml`` says what
becomes of every flag.
"""

from __future__ import annotations

import re
from typing import Any

from sim.refusals import brief
from sim.translate import megatron_model, megatron_stages
from sim.translate.flags import Flags

MODULES = (
    "core_attn",
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "shared_experts",
)
"""What --recompute-modules may name (transformer_config.py)."""
_STATE = {
    "master": ("--main-params-dtype", ("fp32", "fp16")),
    "first": ("--exp-avg-dtype", ("fp32", "fp16", "bf16", "fp8")),
    "second": ("--exp-avg-sq-dtype", ("fp32", "fp16", "bf16", "fp8")),
}
"""Flags of the precision-aware optimizer by the keys of a recipe, and what they may be."""
_CP = {"p2p": "ring", "all_gather": "allgather", "a2a": "ulysses", "a2a+p2p": "usp"}
_ZERO = {"no_shard": "0", "optim": "1", "optim_grads": "2", "optim_grads_params": "3"}


def translate(flags: Flags, gpus: int | None, *, model: bool) -> dict[str, Any]:
    """The tables of a recipe, without [cluster]; without all but the sequence if not ``model``.

    ``gpus`` is what the default of --global-batch-size and of --ddp-bucket-size follow from.
    Raises ValueError, in one sentence, for what is contradictory, missing or cannot be said.
    """
    training = _training(flags)
    split = {**_sizes(flags), **_data_parallel(flags), **_overlap(flags)}
    replicas = (gpus or 0) // (split["tp"] * split["pp"] * split["cp"])
    if replicas:
        training.setdefault("global_batch", training["micro_batch"] * replicas)
        bytes_each = {"fp32": 4, "bf16": 2, "fp16": 2}[training["grad_dtype"]]
        if "fsdp" not in split:
            split["bucket_mb"] = _bucket(flags, replicas * split["cp"]) * bytes_each / 1e6
    sections: dict[str, Any] = {
        "model": megatron_model.model(flags) if model else megatron_model.sequence(flags),
        "parallelism": split,
        "schedule": megatron_stages.schedule(flags),
    }
    return {**sections, "training": training}


def left_out(flags: Flags) -> dict[str, str]:
    """Flags that are understood but whose value could not be said, and what they are about."""
    return {**megatron_model.left_out(flags), **megatron_stages.left_out(flags)}


def _sizes(flags: Flags) -> dict[str, Any]:
    tp = flags.whole("--tensor-model-parallel-size") or 1
    cp = flags.whole("--context-parallel-size") or 1
    kinds = flags.given.get("--cp-comm-type", ())
    if len(set(kinds)) > 1:
        flags.refuse(f"--cp-comm-type {' '.join(kinds)} differs by layer, which is not simulated")
    out: dict[str, Any] = {
        "tp": tp,
        "pp": flags.whole("--pipeline-model-parallel-size") or 1,
        "sp": tp > 1 and flags.on("--sequence-parallel"),  # switched off where tp is 1
        "cp": cp,
        "order": "tp-cp-ep-pp-dp" if flags.on("--use-tp-pp-dp-mapping") else "tp-cp-ep-dp-pp",
    }
    if cp > 1:
        out["cp_kind"] = flags.choice("--cp-comm-type", _CP, "ring")
    if out.get("cp_kind") == "usp":
        out["ulysses"] = _inner(flags, cp)
    if flags.whole("--num-experts", least=0):
        out["ep"] = flags.whole("--expert-model-parallel-size") or 1
        out["etp"] = flags.whole("--expert-tensor-parallel-size") or tp
    return out


def _inner(flags: Flags, cp: int) -> int:
    """Of a2a+p2p the ranks that exchange heads: the first of two sizes (transformer_config.py)."""
    flag = "--hierarchical-context-parallel-sizes"
    said = " ".join(flags.given.get(flag, ())).strip("[] ")
    sizes = re.fullmatch(r"\s*(\d{1,9})\s+(\d{1,9})\s*", said)
    if sizes is None or int(sizes[1]) * int(sizes[2]) != cp:
        flags.refuse(f"--cp-comm-type a2a+p2p needs two sizes in {flag} whose product is {cp}")
    return int(sizes[1])


def _data_parallel(flags: Flags) -> dict[str, Any]:
    flags.one_of("--use-torch-fsdp2", "--use-distributed-optimizer")
    flags.one_of("--use-torch-fsdp2", "--use-megatron-fsdp", "--use-custom-fsdp")
    sharded = flags.on("--use-torch-fsdp2", "--use-megatron-fsdp", "--use-custom-fsdp")
    instances = flags.whole("--num-distributed-optimizer-instances") or 1
    if sharded and instances > 1:
        flags.refuse(
            "--num-distributed-optimizer-instances is not translated with FSDP; write fsdp"
        )
    if flags.on("--use-torch-fsdp2") and (flags.whole("--pipeline-model-parallel-size") or 1) > 1:
        flags.refuse("--use-torch-fsdp2 does not go with --pipeline-model-parallel-size above 1")
    if flags.on("--use-torch-fsdp2"):
        reshard = not flags.on("--torch-fsdp2-no-reshard-after-forward")
        return {"fsdp": {"kind": "fsdp2", "reshard_after_forward": reshard}}
    least = "1" if flags.on("--use-distributed-optimizer") else "0"
    if flags.on("--use-megatron-fsdp", "--use-custom-fsdp"):
        usual = "3" if flags.on("--use-megatron-fsdp") else "0"  # 0 until April 2026
        stage = flags.choice("--data-parallel-sharding-strategy", _ZERO, usual)
        return {"zero": int(max(stage, least))}
    return {"zero": int(least), **({"optimizer_instances": instances} if instances > 1 else {})}


def _overlap(flags: Flags) -> dict[str, Any]:
    gather, reduce = flags.on("--overlap-param-gather"), flags.on("--overlap-grad-reduce")
    if gather and not reduce:
        flags.refuse("--overlap-param-gather needs --overlap-grad-reduce")
    if flags.on("--tp-comm-overlap") and not flags.on("--sequence-parallel"):
        flags.refuse("--tp-comm-overlap needs --sequence-parallel")
    # what is overlapped is posted as isend and irecv, a stream per pair of ranks; else batched
    tp = flags.whole("--tensor-model-parallel-size") or 1
    own = {"overlap_grad_reduce": reduce, "overlap_param_gather": gather}
    return {
        **({} if flags.on("--use-torch-fsdp2") else own),
        "tp_overlap": tp > 1 and flags.on("--tp-comm-overlap"),
        "p2p": "pair" if megatron_stages.overlaps_p2p(flags) else "batched",
    }


def _bucket(flags: Flags, replicas: int) -> int:
    """Parameters in one bucket: max(40e6, 1e6 dp) unless given (core/distributed)."""
    return flags.whole("--ddp-bucket-size") or max(40_000_000, 1_000_000 * replicas)


def _training(flags: Flags) -> dict[str, Any]:
    flags.one_of("--bf16", "--fp16")
    out: dict[str, Any] = {
        "micro_batch": flags.needed("--micro-batch-size"),
        "dtype": "bf16" if flags.on("--bf16") else "fp16" if flags.on("--fp16") else "fp32",
        "grad_dtype": _gradients(flags),
        "recompute": _recompute(flags),
    }
    if batch := flags.whole("--global-batch-size"):
        out["global_batch"] = batch
    if flags.text("--fp8-format"):
        out["fp8"] = _fp8(flags)
    if offload := _offload(flags):
        out["offload"] = offload
    if optimizer := flags.text("--optimizer"):
        out["optimizer"] = optimizer if optimizer != "sgd" else "sgd with momentum"
    if flags.number("--clip-grad") == 0:
        out["clip"] = False
    if state := _state(flags):
        out["optimizer_state"] = state
    if _adds_gradients(flags):
        out["weight_gradients"] = "cached"
    return out


def _state(flags: Flags) -> dict[str, str]:
    """In which numbers Adam keeps its state, where Transformer Engine's takes others than fp32.

    Of an fp32 master copy it keeps what weights of bf16 lack (``store_param_remainders``). What the
    host updates stays fp32.
    """
    said = {
        key: flags.choice(flag, {kind: kind for kind in kinds}, "fp32")
        for key, (flag, kinds) in _STATE.items()
    }
    aware, host = flags.on("--use-precision-aware-optimizer"), flags.on("--optimizer-cpu-offload")
    if not aware:
        for key in (key for key, kind in said.items() if kind != "fp32"):
            flags.refuse(f"{_STATE[key][0]} = {said[key]} needs --use-precision-aware-optimizer")
        return {}
    if not flags.on("--use-distributed-optimizer"):
        flags.refuse("--use-precision-aware-optimizer needs --use-distributed-optimizer")
    if host and set(said.values()) == {"fp32"}:
        return {}
    whole = host or flags.on("--fp8-param-gather") or not flags.on("--bf16")
    return said if whole or said["master"] != "fp32" else {**said, "master": "remainder"}


def _adds_gradients(flags: Flags) -> bool:
    """Whether Transformer Engine's GEMMs add to main gradients, as they do unless told not to.

    Sharded gradients have none of their own to add to.
    """
    sharded = ("--use-torch-fsdp2", "--use-megatron-fsdp", "--use-custom-fsdp")
    own = flags.text("--transformer-impl") in (None, "transformer_engine")
    return own and not flags.on("--no-gradient-accumulation-fusion", *sharded)


def _fp8(flags: Flags) -> dict[str, Any]:
    """Which linears' numbers are fp8; Transformer Engine gathers activations in fp8."""
    kinds = {kind: kind for kind in ("delayed", "tensorwise", "blockwise", "mxfp8")}
    for flag in ("--first-last-layers-bf16", "--no-fp8-wgrad", "--disable-fp8-wgrad"):
        if flags.on(flag):
            flags.refuse(f"{flag} is not simulated; all linears of the layers run in fp8")
    out: dict[str, Any] = {
        "format": flags.choice("--fp8-format", {"hybrid": "hybrid", "e4m3": "e4m3"}, "hybrid"),
        "recipe": flags.choice("--fp8-recipe", kinds, "delayed"),
        "params": flags.on("--fp8-param-gather"),
    }
    return {**out, "amax": "tp"} if flags.on("--tp-only-amax-red") else out


def _offload(flags: Flags) -> str | dict[str, Any]:
    """What goes to the host: activations, of all layers; and of the optimizer a share."""
    activations = bool(flags.whole("--cpu-offloading-num-layers", least=0))
    if not flags.on("--optimizer-cpu-offload"):
        return "activations" if activations else ""
    share = flags.number("--optimizer-offload-fraction")
    overlap = flags.on("--overlap-cpu-optimizer-d2h-h2d")
    table = {"optimizer": 1.0 if share is None else share, "overlap": overlap}
    if activations:
        table["activations"] = 1.0
    return "optimizer" if table == {"optimizer": 1.0, "overlap": False} else table


def _gradients(flags: Flags) -> str:
    """Of which type gradients are summed and reduced: fp32 but for what asks for less."""
    flags.one_of("--accumulate-allreduce-grads-in-fp32", "--grad-reduce-in-bf16")
    main = flags.choice("--main-grads-dtype", {"fp32": "fp32", "bf16": "bf16"}, "fp32")
    if flags.on("--accumulate-allreduce-grads-in-fp32"):
        return "fp32"
    if flags.on("--fp16"):
        return "fp16"
    return "bf16" if flags.on("--bf16") and flags.on("--grad-reduce-in-bf16") else main


def _recompute(flags: Flags) -> str | dict[str, Any]:
    kinds = {"selective": "selective", "full": "full"}
    kind = flags.choice("--recompute-granularity", kinds, "none")
    if flags.on("--recompute-activations", "--moe-layer-recompute"):
        kind = "selective"
    modules = list(flags.given.get("--recompute-modules", ()))
    if flags.on("--moe-layer-recompute") and "moe" not in modules:
        modules = [*(modules or ["core_attn"]), "moe"]
    if kind == "selective":
        return kind if modules in ([], ["core_attn"]) else {"modules": _modules(flags, modules)}
    method, layers = flags.text("--recompute-method"), flags.whole("--recompute-num-layers") or 1
    if kind == "full" and method == "block" and layers < megatron_stages.most_layers(flags):
        return {"method": "block", "layers": layers}  # the first so many layers of each stage
    if kind == "full" and method == "uniform" and layers > 1:
        return {"method": "uniform", "layers": layers}  # the input of every so many layers is kept
    return kind


def _modules(flags: Flags, modules: list[str]) -> list[str]:
    """Megatron's names; without Transformer Engine every norm stands by itself."""
    for name in modules:
        if name not in MODULES:
            flags.refuse(f"--recompute-modules has {brief(name)}; there are {', '.join(MODULES)}")
    local = flags.text("--transformer-impl") == "local"
    return ["norm" if local and name == "layernorm" else name for name in modules]
