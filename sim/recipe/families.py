"""How transformers' configuration classes spell a model: one file of ``configs`` per family.

A file has a ``source`` and some of: ``like`` (a family whose tables it extends), ``text`` (the
family of its table ``text_config``, which alone is read), ``keys`` (a recipe's keys in its
spelling), ``defaults`` (of the class, because files may leave these keys out), ``also`` (later
names of keys), ``always`` (what holds for every model), ``switches`` (what holds where a key is
true), ``only`` (keys that ask for what is not simulated, with the values that are; without one the
key must be null), ``tables`` (nested tables of a recipe, spelled as ``keys``), and ``pattern`` and
``feed_forward`` (kinds of layers, see :mod:`sim.recipe.layer_lists`). In ``keys`` and ``always`` ""
takes one away. A number may be a key, a constant, or two keys with * or / between them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parent / "configs"
EXTENDED = ("keys", "defaults", "also", "always", "switches", "only", "tables")
ACTIVATION = {"silu": "silu", "swish": "silu", "relu2": "relu2", "gelu": "gelu"}
ACTIVATION |= dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu")
MAY_BE_NULL = (
    "n_inner",
    "num_key_value_heads",
    "head_dim",
    "n_shared_experts",
    "num_nextn_predict_layers",
)
NEAREST = {
    "deepseek_v32": ("deepseek_v3", "sparse attention to keys that an indexer chooses"),
    "deepseek_v4": ("deepseek_v3", "attention to compressed keys, and hyper-connections"),
    "gemma2": ("gemma3", "attention whose logits are capped"),
    "gemma4": ("gemma3", "layers whose heads differ in number and width"),
    "glm_moe_dsa": ("deepseek_v3", "sparse attention to keys that an indexer chooses"),
    "kimi_linear": ("deepseek_v3", "layers of Kimi delta attention"),
    "mimo_v2_flash": ("gpt_oss", "layers whose heads differ in number and width"),
    "nemotron-nas": ("llama", "layers whose sizes differ"),
    "step3p7": ("gpt_oss", "layers whose heads differ in number"),
}
"""For families that are not simulated, the nearest one that is, and what is missing."""


@cache
def names() -> tuple[str, ...]:
    """Return the names of all families."""
    return tuple(sorted(file.stem for file in CONFIGS.glob("*.toml")))


@cache
def family(name: str) -> Mapping[str, Any]:
    """Return the tables of a family, those of the family that it is like among them.

    >>> family("kimi_k2")["keys"]["topk"]
    'num_experts_per_tok'
    """
    own = tomllib.loads((CONFIGS / f"{name}.toml").read_text())
    base = family(own["like"]) if "like" in own else {}
    extended = {key: {**base.get(key, {}), **own.get(key, {})} for key in EXTENDED}
    for key in ("keys", "always"):
        extended[key] = {name: value for name, value in extended[key].items() if value != ""}
    return {**base, **own, **extended}
