"""Context parallelism: how the ranks of a group share attention. See ``rewrite.py``."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Literal, cast

from schedules.input_error import InputError
from sim.keys.section import Section
from sim.recipe.sections import Gpus
from sim.strategies.tensor.declare import sp

if TYPE_CHECKING:
    from sim.recipe.recipe import Recipe
    from sim.recipe.translate.flags import Flags
    from sim.recipe.translate.torchtitan_keys import Keys as Titan


class Keys(Section):
    """The keys of [parallelism]."""

    cp_kind: Literal["ring", "ulysses", "allgather", "usp"] = "ring"
    """how cp ranks share attention: ring, ulysses, allgather or usp (ulysses inside a ring)"""
    cp_placement: Literal["contiguous", "zigzag", "striped"] = "zigzag"
    """tokens of a cp rank: one run (contiguous), an early and a late run (zigzag), every cp-th
    (striped)"""
    ulysses: Gpus = 1
    """usp: number of GPUs that exchange heads; a ring joins the cp / ulysses groups"""


AFTER = ("tensor",)
KEYS = {"parallelism": Keys}
CATALOGUE = {
    "parallelism.cp_kind": (
        "attention over context parallel GPUs",
        "keys and values go round a ring, heads are exchanged for sequence, or keys are gathered",
    ),
    "parallelism.cp_placement": (
        "placement of the sequence",
        "which parts of it each GPU has, so that the work of causal attention is even",
    ),
    "parallelism.ulysses": (
        "Ulysses in a ring",
        "this many GPUs exchange heads; a ring goes across them",
    ),
}
_KINDS = {"p2p": "ring", "all_gather": "allgather", "a2a": "ulysses", "a2a+p2p": "usp"}
_ROTATIONS = {"allgather": "allgather", "alltoall": "ring"}


def keys(parallelism: object) -> Keys:
    """Return [parallelism] as what has these keys."""
    return cast("Keys", parallelism)


def check(recipe: Recipe) -> None:
    """Raise InputError for heads, a sequence or keys that cp does not go with."""
    p, own = recipe.parallelism, keys(recipe.parallelism)
    kind = f'parallelism.cp_kind = "{own.cp_kind}"'
    if own.cp_kind != "usp" and own.ulysses > 1:
        raise InputError(f'parallelism.ulysses = {own.ulysses} needs cp_kind = "usp"')
    if p.cp % own.ulysses:
        raise InputError(
            f"parallelism.cp = {p.cp} cannot be split over parallelism.ulysses = {own.ulysses}; "
            "ulysses must divide cp"
        )
    if p.cp == 1:
        return
    _latent(recipe)
    degree = p.cp if own.cp_kind == "ulysses" else own.ulysses
    if degree < p.cp and recipe.model.attention == "unfused":
        raise InputError(f'{kind} needs model.attention = "flash", or cp_kind = "ulysses"')
    if own.cp_kind == "allgather" and own.cp_placement == "striped":
        raise InputError(f'parallelism.cp_placement = "striped" needs a ring; {kind} has none')
    _kinds_of_layers(recipe, own.cp_kind)
    _exchanged_heads(recipe, degree)
    zigzag = own.cp_placement == "zigzag" and degree < p.cp
    least = p.cp * math.lcm(2 if zigzag else 1, p.tp if sp(p) else 1)
    if (recipe.model.sequence or 0) % least:
        raise InputError(
            f"model.sequence = {recipe.model.sequence} cannot be split over parallelism.cp = "
            f"{p.cp}{', in two runs each' * zigzag}{f' and sp over tp = {p.tp}' * sp(p)}; "
            f"a multiple of {least} would do"
        )


def _latent(recipe: Recipe) -> None:
    if recipe.model.mla:
        raise InputError(
            f"parallelism.cp = {recipe.parallelism.cp} is not simulated yet with model.mla; "
            "it must be 1"
        )


def _kinds_of_layers(recipe: Recipe, how: str) -> None:
    """Check that every kind of layer of a pattern can be shared so."""
    if not recipe.model.pattern:
        return
    from sim.model.sizes import parts  # which loads arrays

    model = recipe.architecture
    all_ = [part for i, _ in model.kinds for part in parts(model, i)]
    able = [kind for kind in _KINDS.values() if all(kind in part.shares for part in all_)]
    for part in all_:
        if how not in part.shares:
            raise InputError(
                f'parallelism.cp_kind = "{how}" is not simulated with {part.kind} layers; '
                + (f"{' or '.join(able)} would do" if able else "cp must be 1")
            )


def _exchanged_heads(recipe: Recipe, degree: int) -> None:
    model, tp = recipe.model, recipe.parallelism.tp
    heads, kv_heads = (model.heads or 0) // tp, max(1, (model.kv_heads or 1) // tp)
    few, many = sorted((kv_heads, degree))
    for name, size, fits in (
        ("heads", model.heads, heads % degree == 0),
        ("kv_heads", model.kv_heads, many % few == 0),
    ):
        if not fits:
            also = ", or be a multiple of it" if name == "kv_heads" else ""
            raise InputError(
                f"model.{name} = {size} over tp = {tp} cannot be exchanged among {degree} GPUs; "
                f"the degree of Ulysses must divide {name} / tp{also}"
            )


def megatron(flags: Flags) -> dict[str, dict[str, Any]]:
    """Return how ranks share attention, which is to be the same in all layers."""
    cp = flags.whole("--context-parallel-size") or 1
    kinds = flags.given.get("--cp-comm-type", ())
    if len(set(kinds)) > 1:
        flags.refuse(f"--cp-comm-type {' '.join(kinds)} differs by layer, which is not simulated")
    if cp == 1:
        return {}
    kind = flags.choice("--cp-comm-type", _KINDS, "ring")
    inner = {"ulysses": _inner(flags, cp)} if kind == "usp" else {}
    return {"parallelism": {"cp_kind": kind, **inner}}


def _inner(flags: Flags, cp: int) -> int:
    """Return the ranks of a2a+p2p that exchange heads: the first of two sizes.

    Source: transformer_config.py.
    """
    flag = "--hierarchical-context-parallel-sizes"
    said = " ".join(flags.given.get(flag, ())).strip("[] ")
    sizes = re.fullmatch(r"\s*(\d{1,9})\s+(\d{1,9})\s*", said)
    if sizes is None or int(sizes[1]) * int(sizes[2]) != cp:
        flags.refuse(f"--cp-comm-type a2a+p2p needs two sizes in {flag} whose product is {cp}")
    return int(sizes[1])


def torchtitan(titan: Titan) -> dict[str, dict[str, Any]]:
    """Return how ranks share attention."""
    if titan.degree("context_parallel_degree") == 1:
        return {}
    method = "parallelism.context_parallel_rotate_method"
    return {"parallelism": {"cp_kind": titan.choice(method, _ROTATIONS, "allgather")}}
