"""The vocabulary that Megatron-LM's arguments name: a size, or a tokenizer that has one.

Padding is that of ``vocab_size_with_padding`` (megatron/core/tokenizers/utils/build_tokenizer.py):
to a multiple of --make-vocab-size-divisible-by times the tensor-parallel size.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from sim.keys.refusals import brief
from sim.recipe.translate.flags import Flags

TABLE = Path(__file__).with_name("tokenizers.toml")


def vocabulary(flags: Flags, *, given: bool = False) -> dict[str, Any]:
    """Return the keys of the vocabulary, without its size where the recipe has ``given`` it.

    Raises InputError for a tokenizer whose size is not known.
    """
    if padded := flags.whole("--padded-vocab-size"):
        return {"vocab": padded, "vocab_padding": 1}
    padding = {"vocab_padding": flags.whole("--make-vocab-size-divisible-by") or 128}
    return padding if given else {"vocab": _size(flags), **padding}


def _size(flags: Flags) -> int:
    """Return the number of tokens; pretrain_gpt.py's own type is GPT2BPETokenizer."""
    kind = flags.text("--tokenizer-type") or "GPT2BPETokenizer"
    name = " ".join(flags.given.get("--tokenizer-model", ()))
    stated = flags.whole("--vocab-size")
    types, names = _tables()["types"], _tables()["names"]
    if stated and kind in ("NullTokenizer", "TikTokenizer"):
        return stated
    by_name = next((names[words] for words in names if re.search(words, name, re.IGNORECASE)), 0)
    size = by_name or stated or types.get(kind)
    if size is None:
        said = f"--tokenizer-model {brief(name)}" if name else f"--tokenizer-type {kind}"
        flags.refuse(
            f"the size of {said} is not known; add --vocab-size, or vocab to the recipe's [model] "
            "(--set model.vocab=128256)"
        )
    return int(size)


@cache
def _tables() -> dict[str, dict[str, int]]:
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))
