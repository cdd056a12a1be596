"""Whether the numbers of a recipe agree; each check says in one sentence why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import schedules
from schedules.input_error import InputError
from sim import strategies
from sim.keys.refusals import brief
from sim.recipe.legality import alone, images, layer_kinds, perturbations, products, state
from sim.recipe.recipe import Recipe

AXES = "tp-cp-ep-dp-pp"
MOST_MICROBATCHES = 65_536
"""The most microbatches per pipeline that are simulated."""


def check(recipe: Recipe) -> None:
    """Raise InputError for the first thing in a complete recipe that cannot run as a job."""
    for agree in (*CHECKS, *strategies.declared("check")):
        agree(recipe)


def even(layers: int, stages: int) -> tuple[int, ...]:
    """Spread layers over stages, with more of them in the middle, as the ends have other work too.

    >>> even(10, 4)
    (2, 3, 3, 2)
    """
    each, rest = divmod(layers, stages)
    first = (stages - rest) // 2
    return tuple(each + (first <= stage < first + rest) for stage in range(stages))


def _uneven(layers: int, stages: int) -> None:
    one = layers == 1
    held = f"{layers} layer{'s' * (not one)} on {stages} stages (pp x chunks)"
    if layers < stages:
        leave = "leaves" if one else "leave"
        raise InputError(f"{held} {leave} some without a layer; at most {layers} would do")
    if layers % stages:
        split = list(even(layers, stages))
        raise InputError(
            f"{held} cannot be spread evenly; write schedule.layers_per_stage = {split}"
        )


def _gpus(recipe: Recipe) -> None:
    p, gpus = recipe.parallelism, recipe.cluster.gpus
    split = p.tp * p.pp * p.cp
    if split * (p.dp or 1) == gpus:
        return
    product = f"tp {p.tp} x pp {p.pp} x cp {p.cp} x dp {p.dp} = {split * (p.dp or 1)}"
    advice = f"dp = {gpus // split}" if gpus % split == 0 else f"a multiple of {split} GPUs"
    raise InputError(f"{product}, but cluster.gpus = {gpus}; {advice} would do")


def _order(recipe: Recipe) -> None:
    order = recipe.parallelism.order
    if sorted(order.split("-")) != sorted(AXES.split("-")):
        raise InputError(
            f"parallelism.order = {brief(order)} must name {', '.join(AXES.split('-'))} "
            f'once each, innermost first, such as "{AXES}"'
        )


def _combinations(recipe: Recipe) -> None:
    p = recipe.parallelism
    if p.p2p == "batched" and p.overlap_p2p:
        raise InputError(
            'parallelism.overlap_p2p = true needs p2p = "direction" or "pair": '
            "the pipeline waits for batched kernels"
        )


def _schedule(recipe: Recipe) -> None:
    schedule = recipe.schedule
    options = schedules.options(schedule.name)
    own = schedules.stages_per_rank(schedule.name)
    if (schedule.chunks or 1) != own and "chunks" not in options and not schedule.csv:
        able = [name for name in schedules.names() if "chunks" in schedules.options(name)]
        raise InputError(
            f"schedule.chunks = {schedule.chunks} needs a schedule with chunks, such as "
            f"{able[0]}; {schedule.name} has {own} stage{'s' if own > 1 else ''} per rank"
        )


def _asynchronous(recipe: Recipe) -> None:
    """Check what a pipeline without a flush cannot do."""
    name, m, pp = recipe.schedule.name, recipe.microbatches, recipe.parallelism.pp
    if recipe.flushed:
        return
    if 1 < m < pp:
        one = recipe.training.micro_batch * (recipe.parallelism.dp or 1)
        raise InputError(
            f"{name} updates the weights after each microbatch, or after at least pp = {pp}; "
            f"training.global_batch = {recipe.training.global_batch} makes {m} per pipeline, "
            f"{one} or {one * pp} would do"
        )
    least = sum(recipe.ramps) + 1
    if (recipe.simulation.steps or least) < least:
        raise InputError(
            f"simulation.steps = {recipe.simulation.steps} does not reach the steady state of "
            f"{name}; at least {least} would, or leave it out"
        )
    if recipe.parallelism.overlap_param_gather:
        raise InputError(
            f"parallelism.overlap_param_gather = true needs a schedule with a flush; in {name} "
            "steps overlap; false would do"
        )


def _stages(recipe: Recipe) -> None:
    layers, stages, given = recipe.model.layers or 0, recipe.stages, recipe.layers_per_stage
    if not given:
        _uneven(layers, stages)
    advice = f"schedule.layers_per_stage = {list(even(layers, stages))} would do"
    if len(given) != stages:
        raise InputError(
            f"schedule.layers_per_stage has length {len(given)}, but pp x chunks = {stages} "
            f"stages; {advice}"
        )
    if sum(given) != layers:
        raise InputError(
            f"schedule.layers_per_stage adds up to {sum(given)}, but model.layers = {layers}; "
            f"{advice}"
        )
    _ends_alone(recipe, given)


def _post_validation(recipe: Recipe) -> None:
    if recipe.training.clip != "post":
        return
    if not recipe.flushed:
        raise InputError(
            f'training.clip = "post" needs a schedule with a flush; {recipe.schedule.name} '
            "finds no norm over all stages; leave it out"
        )
    if recipe.parallelism.pp == 1:
        raise InputError('training.clip = "post" needs pp > 1; with one stage, true would do')


def _ends_alone(recipe: Recipe, split: Sequence[int]) -> None:
    """Check that stages without layers hold the embedding or the head."""
    alone = {0: not recipe.model.blocks, len(split) - 1: True}
    for stage, layers in enumerate(split):
        if not layers and not (alone.get(stage) and recipe.model.vocab):
            ends = "the last has a head" if recipe.model.blocks else "the first and last hold more"
            raise InputError(
                f"schedule.layers_per_stage[{stage}] = 0 is a stage with nothing in it; of "
                f"{len(split)} stages only {ends}"
            )


def _batch(recipe: Recipe) -> None:
    batch, one = recipe.training.global_batch, recipe.training.micro_batch
    dp = recipe.parallelism.dp or 1
    if batch % (one * dp):
        below = batch // (one * dp) * one * dp
        near = f"{below} or {below + one * dp}" if below else f"{one * dp}"
        raise InputError(
            f"training.global_batch = {batch} is not a multiple of "
            f"micro_batch x dp = {one} x {dp}; {near} would do"
        )
    name, given = recipe.schedule.name, recipe.schedule
    for key, value in (("group", given.group), ("overlap", given.overlap or None)):
        if value is not None and key not in schedules.options(name):
            raise InputError(f"the schedule {name} has no {key}; leave schedule.{key} out")
    _size(recipe)
    _asynchronous(recipe)
    schedules.check(name, recipe.parallelism.pp, recipe.planned, **recipe.options)


def _size(recipe: Recipe) -> None:
    """Check that the job can be simulated in reasonable time and memory."""
    steps = recipe.simulation.steps or 1
    microbatches, stages = recipe.microbatches * steps, recipe.stages
    fewer = "a smaller training.global_batch, or a larger micro_batch, would do"
    if steps > 1:
        fewer = f"fewer simulation.steps than {steps}, or {fewer}"
    if microbatches > MOST_MICROBATCHES:
        raise InputError(
            f"{microbatches:,} microbatches per pipeline and run are more than the "
            f"{MOST_MICROBATCHES:,} that can be simulated; {fewer}"
        )
    if stages * microbatches > schedules.MOST_STEPS:
        raise InputError(
            f"pp x chunks x microbatches = {stages} x {microbatches} are more than the "
            f"{schedules.MOST_STEPS:,} steps that can be simulated; {fewer}"
        )


CHECKS: tuple[Callable[[Recipe], None], ...] = (
    images.check,
    alone.check,
    layer_kinds.check,
    _gpus,
    _order,
    _combinations,
    _schedule,
    _stages,
    _batch,
    _post_validation,
    products.check,
    state.check,
    perturbations.check,
)
