"""How a torchtitan job cuts layers into stages and a batch into microbatches."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from sim.keys.refusals import brief
from sim.recipe.translate.torchtitan_keys import Keys

SCHEDULES = {
    "1F1B": "one_f_one_b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved_1f1b",
    "LoopedBFS": "looped_bfs",
    "InterleavedZeroBubble": "interleaved_zero_bubble",
    "ZBVZeroBubble": "zb_v",
    "DualPipeV": "dualpipe_v",
}
_SINGLE = ("1F1B", "GPipe")
_V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


def schedule(titan: Keys, layers: int | None, folder: Path) -> dict[str, Any]:
    """Return the section [schedule]; layers are cut into stages as in torchtitan.

    Raises InputError for a schedule or a split that is not simulated.
    """
    ranks = titan.degree("pipeline_parallel_degree")
    if ranks == 1:
        return {}
    names = {name.lower(): name for name in SCHEDULES}
    said = titan.of(str, "parallelism.pipeline_parallel_schedule", "1F1B")
    name = names.get(said.lower(), said)
    out: dict[str, Any] = {}
    if csv := titan.of(str, "parallelism.pipeline_parallel_schedule_csv", ""):
        out["csv"] = (folder / csv).as_posix()
    elif name in SCHEDULES:
        out["name"] = SCHEDULES[name]
    else:
        titan.refuse(
            f"parallelism.pipeline_parallel_schedule = {brief(said)} is not simulated; "
            f"there are {', '.join(SCHEDULES)}"
        )
    split = layers and _cut(titan, layers, ranks, 1 if name in _SINGLE else 2)
    if split:
        out["layers_per_stage"] = split
        if name not in _SINGLE and name not in _V_SHAPED:
            out["chunks"] = len(split) // ranks
    return out


def _cut(titan: Keys, layers: int, ranks: int, chunks: int) -> list[int]:
    """Return the layers of each stage, as the file gives them or as torchtitan cuts them."""
    if points := titan.of(list, "parallelism.pipeline_parallel_split_points", []):
        return _at(titan, points, layers, ranks)
    if parts := titan.of(list, "parallelism.module_fqns_per_model_part", []):
        return _named(titan, parts, layers, ranks)
    if titan.old:
        return _of_2024(titan, layers, ranks * chunks)
    first = titan.of(int, "parallelism.pipeline_parallel_first_stage_less_layers", 1)
    last = titan.of(int, "parallelism.pipeline_parallel_last_stage_less_layers", 1)
    each = titan.of(int, "parallelism.pipeline_parallel_layers_per_stage", 0)
    whole = layers + first + last
    stages = -(-whole // each) if each > 0 else ranks * chunks
    if stages % ranks or stages > layers:
        titan.refuse(f"{layers} layers in {stages} stages do not fit {ranks} pipeline ranks")
    least, more = divmod(whole, stages)
    split = [least + (stage < more) for stage in range(stages)]
    split[0] -= first
    split[-1] -= last
    if min(split) < 1:
        titan.refuse(f"{layers} layers leave one of {stages} stages without a layer")
    return split


def _of_2024(titan: Keys, layers: int, stages: int) -> list[int]:
    """Return even stages; the middle ones share the rest one by one.

    Source: generate_split_points, December 2024.
    """
    each, rest = divmod(layers, stages)
    if not each:
        titan.refuse(f"{layers} layers leave one of {stages} stages without a layer")
    middle = [each + (stage < rest) for stage in range(stages - 2)]
    return [each, *middle, layers - each - sum(middle)]


def _named(titan: Keys, parts: list[Any], layers: int, ranks: int) -> list[int]:
    """Return stages whose modules are listed, such as ``["tok_embeddings", "layers.0"]``."""
    names = [[str(name) for name in part] for part in parts if isinstance(part, list)]
    found = [[name for name in part if re.fullmatch(r"layers\.\d{1,6}", name)] for part in names]
    in_order = [name for part in found for name in part]
    if in_order != [f"layers.{k}" for k in range(layers)] or len(found) % ranks:
        titan.refuse(
            f"parallelism.module_fqns_per_model_part must list layers.0 to layers.{layers - 1} in "
            f"order, for a multiple of {ranks} stages"
        )
    return [len(part) for part in found]


def _at(titan: Keys, points: list[Any], layers: int, ranks: int) -> list[int]:
    """Return the stages that begin at ``layers.N`` for each of these points."""
    found = [re.fullmatch(r"layers\.(\d{1,6})", str(point)) for point in points]
    begins = [0, *(int(match[1]) for match in found if match), layers]
    split = [b - a for a, b in pairwise(begins)]
    if not all(found) or min(split) < 1 or len(split) % ranks:
        titan.refuse(
            f"parallelism.pipeline_parallel_split_points = {brief(points)} must name layers.N "
            f"in order, for a multiple of {ranks} stages"
        )
    return split
