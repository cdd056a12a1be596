"""How Megatron-LM's arguments cut the layers into stages."""

from __future__ import annotations

import re
from typing import Any

from sim.keys.refusals import brief
from sim.recipe.translate.flags import Flags

FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
EMBEDDING = "--account-for-embedding-in-pipeline-split"
LOSS = "--account-for-loss-in-pipeline-split"
EACH = "--num-layers-per-virtual-pipeline-stage"
CHUNKS = "--num-virtual-stages-per-pipeline-rank"
LAYOUT = "--pipeline-model-parallel-layout"
ALONE = "--standalone-embedding-stage"


def schedule(flags: Flags) -> dict[str, Any]:
    """Return the section [schedule]: 1F1B, or interleaved where ranks have several stages.

    Raises InputError for flags that contradict each other or a split that is not simulated.
    """
    flags.one_of(EACH, CHUNKS, LAYOUT)
    for other in (EACH, CHUNKS, LAYOUT, FIRST, LAST, EMBEDDING, LOSS):
        flags.one_of(ALONE, other)
    for one in (FIRST, LAST):
        for other in (EMBEDDING, LOSS, EACH):
            flags.one_of(one, other)
    v, group = chunks(flags), "--microbatch-group-size-per-virtual-pipeline-stage"
    out: dict[str, Any] = {"name": "interleaved_1f1b" if v > 1 else "one_f_one_b"}
    if v > 1:
        out["chunks"] = v
        if size := flags.whole(group):
            out["group"] = size
        if flags.on("--overlap-moe-expert-parallel-comm"):
            out["overlap"] = True
    if flags.on("--delay-wgrad-compute"):
        out["deferred_wgrad"] = True
    if split := _uneven(flags, _ranks(flags), v):
        out["layers_per_stage"] = split
    return out


def left_out(flags: Flags) -> dict[str, str]:
    """Return flags that have no effect without several stages per rank."""
    without = (
        "--microbatch-group-size-per-virtual-pipeline-stage",
        "--overlap-moe-expert-parallel-comm",
    )
    given = [flag for flag in without if flags.on(flag) and chunks(flags) == 1]
    return dict.fromkeys(given, "needs several stages per pipeline rank")


def overlaps_p2p(flags: Flags) -> bool:
    """Return whether sends and receives run beside kernels: only in an interleaved pipeline."""
    return chunks(flags) > 1 and not flags.on("--no-overlap-p2p-communication")


def chunks(flags: Flags) -> int:
    """Return the stages per rank of the pipeline."""
    ranks = _ranks(flags)
    if flags.on(LAYOUT):
        return max(1, len(_layout(flags)) // ranks)
    if each := flags.whole(EACH):
        layers = _counted(flags)
        if layers % (ranks * each):
            flags.refuse(f"{EACH} = {each} does not cut {layers} layers evenly over {ranks} ranks")
        return layers // ranks // each
    return flags.whole(CHUNKS) or 1


def most_layers(flags: Flags) -> int:
    """Return the most layers that a stage has."""
    stages = _ranks(flags) * chunks(flags)
    return max(_uneven(flags, _ranks(flags), chunks(flags)) or [-(-_counted(flags) // stages)])


def _ranks(flags: Flags) -> int:
    return flags.whole("--pipeline-model-parallel-size") or 1


def _counted(flags: Flags) -> int:
    """Return the number of layers, with embedding and head where these count as layers."""
    return flags.needed("--num-layers") + flags.on(EMBEDDING) + flags.on(LOSS)


def _uneven(flags: Flags, ranks: int, v: int) -> list[int] | None:
    """Return the layers of each stage, first to last, where the arguments make them uneven."""
    if flags.on(LAYOUT):
        return [stage.count("t") for stage in _layout(flags)]
    if flags.on(FIRST, LAST):
        return [_part(flags, layers, v) for layers in _ends(flags, ranks)] * v
    if flags.on(ALONE):
        if ranks < 2:
            flags.refuse(f"{ALONE} needs --pipeline-model-parallel-size of at least 2")
        return [0, *[_part(flags, flags.needed("--num-layers"), ranks - 1)] * (ranks - 1)]
    if not flags.on(EMBEDDING, LOSS):
        return None
    each = _part(flags, _counted(flags), ranks * v)
    split = [each] * (ranks * v)
    split[0] -= flags.on(EMBEDDING)
    split[-1] -= flags.on(LOSS)
    return split


def _ends(flags: Flags, ranks: int) -> list[int]:
    """Return the layers of each rank: those given for the ends; the others share the rest."""
    first, last = flags.whole(FIRST), flags.whole(LAST)
    rest = flags.needed("--num-layers") - (first or 0) - (last or 0)
    others = ranks - (first is not None) - (last is not None)
    if others < 1 or rest < others:
        flags.refuse(f"{FIRST if first else LAST} leaves {rest} layers for {others} ranks")
    middle = _part(flags, rest, others)
    return [*[first] * bool(first), *[middle] * others, *[last] * bool(last)]  # type: ignore[list-item]


def _part(flags: Flags, layers: int, stages: int) -> int:
    if layers % stages:
        flags.refuse(f"{layers} layers cannot be spread evenly over {stages} stages")
    return layers // stages


def _layout(flags: Flags) -> list[str]:
    """Return the stages of a layout such as ``Et*3|(tt|)*6mL``: t is a layer, | ends a stage."""
    said = flags.text(LAYOUT) or ""
    text = re.sub(r"[\s,\"']", "", said)
    if not re.fullmatch(r"(?:[EtmL|]|\([EtmL|*\d]+\)\*\d{1,3}|\*\d{1,3})+", text):
        flags.refuse(f"{LAYOUT} = {brief(said)} is not a layout such as Et*3|(tt|)*6L")
    text = re.sub(r"([EtmL|])\*(\d+)", lambda m: m[1] * int(m[2]), text)
    text = re.sub(r"\(([EtmL|]+)\)\*(\d+)", lambda m: m[1] * int(m[2]), text)
    stages = text.split("|")
    if len(stages) % _ranks(flags) or text.count("t") != flags.needed("--num-layers"):
        flags.refuse(
            f"{LAYOUT} has {text.count('t')} layers in {len(stages)} stages, which does not fit "
            f"--num-layers = {flags.needed('--num-layers')} on {_ranks(flags)} ranks"
        )
    ends = re.fullmatch("E?t*m*L?", "".join(stages)), {*"mL"} & {*"".join(stages[:-1])}
    if not ends[0] or ends[1] or "E" in "".join(stages[1:]):
        flags.refuse(
            f"{LAYOUT} = {brief(said)} is not simulated: E must begin the first stage, and m and L "
            "must end the last"
        )
    return stages
