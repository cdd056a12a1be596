"""Small models, and jobs of the sizes that a test names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sim.builder.job import Job
from sim.builder.strategies.data import DataParallel
from sim.builder.strategies.sharding import Sharding
from sim.model.sizes import Model
from sim.recipe.recipe import ParallelismSection, ScheduleSection, TrainingSection
from sim.strategies.fp8.precision import Fp8
from sim.strategies.recompute.declare import RecomputeTable

GPT = Model(
    name="gpt", layers=8, hidden=64, heads=8, kv_heads=8, head_dim=8, ffn=256, gated=False,
    vocab=500, tied=True, norm="layer", attention="unfused", activation="gelu", qkv_bias=True,
    bias=True, position="learned", dropout=0.1, vocab_padding=16, positions=32,
)  # fmt: skip

LLAMA = replace(
    GPT, name="llama", kv_heads=2, ffn=176, gated=True, tied=False, norm="rms",
    attention="flash", activation="silu", qkv_bias=False, bias=False, position="rope",
    dropout=0.0, vocab_padding=1, positions=0,
)  # fmt: skip

CONFIG = {  # of Llama 3 8B
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "hidden_act": "silu", "max_position_embeddings": 8192,
}  # fmt: skip

Keys = dict[str, object]
DERIVED = ("policy",)  # a test may give what otherwise follows from a recipe


def keys(tp: int, sp: bool, micro_batch: int, sequence: int, **others: object) -> Keys:
    """The keys of a job, for :func:`small`."""
    return {"tp": tp, "sp": sp, "micro_batch": micro_batch, "sequence": sequence, **others}


def rerun(modules: tuple[str, ...] | None = None, **keys: Any) -> RecomputeTable:
    """What runs again: these modules, or whole layers, in the layers that the keys choose."""
    return RecomputeTable.model_validate({"modules": modules, **keys})


def small(model: Model, keys: Keys, plan: Any = ()) -> Job:
    """A job of a model with these keys of its recipe, each by its name in its section."""

    def given(section: Any) -> dict[str, object]:
        return {k: v for k, v in keys.items() if k in section.model_fields and k not in derived}

    if "bucket" in keys:  # in bytes
        keys = keys | {"bucket_mb": keys["bucket"] / 1e6}
    if isinstance(keys.get("fp8"), Fp8):
        keys = keys | {"fp8": keys["fp8"]._asdict()}
    derived = {k: v for k, v in keys.items() if k in DERIVED and not isinstance(v, str | dict)}
    own = {k: v for k, v in keys.items() if k in Model.__dataclass_fields__}
    training = {"global_batch": 1} | given(TrainingSection)
    job = Job(
        replace(model, **own),  # type: ignore[arg-type]
        ParallelismSection(**given(ParallelismSection)),
        TrainingSection(**training),
        ScheduleSection(**given(ScheduleSection)),
        plan,
    )
    vars(job).update(derived)
    return with_data(job, sharding=keys["sharding"]) if "sharding" in keys else job


def with_data(job: Job, **changes: Any) -> Job:
    """The job with some of the numbers changed that its data parallelism has from the recipe."""
    same = replace(job)
    vars(same).update({name: vars(job)[name] for name in DERIVED if name in vars(job)})
    vars(same)["data"] = replace(job.data, **changes)
    return same


def replicas(degree: int = 1, sharding: Sharding | None = None, **keys: object) -> DataParallel:
    """Data parallelism of this degree, without experts."""
    return replace(small(GPT, keys).data, degree=degree, sharding=sharding)
