"""Whether a recipe's perturbations are possible; each check says in one sentence why not."""

from __future__ import annotations

from schedules.input_error import InputError
from sim import units
from sim.recipe.recipe import Recipe
from sim.recipe.sections import PerturbationSection

EFFECTS = ("compute", "noise", "lengths", "gpu_spread", "bandwidth", "stall")
ONLY = {"link": "bandwidth", "step": "stall", "at": "stall", "stream": "stall"}
ONLY |= {"seed": "gpu_spread"}
"""Keys that only one effect has."""


def check(recipe: Recipe) -> None:
    """Raise InputError for the first of the [[perturbations]] with too many keys or too few.

    Names of links are checked where the machine is known.
    """
    for k, table in enumerate(recipe.perturbations):
        _one(recipe, table, f"perturbations[{k}]")


def _one(recipe: Recipe, table: PerturbationSection, name: str) -> None:
    effects = [key for key in EFFECTS if getattr(table, key) is not None]
    if len(effects) != 1:
        said = " and ".join(effects) or "nothing"
        raise InputError(f"{name} has {said} of {', '.join(EFFECTS)}; it must have exactly one")
    for key, effect in ONLY.items():
        if getattr(table, key) is not None and effects != [effect]:
            raise InputError(f"{name}.{key} goes with {effect}, not with {effects[0]}")
    if table.bandwidth is not None and table.link is None:
        raise InputError(f"{name}.link is missing; bandwidth needs it to know which links are slow")
    if table.lengths is not None and table.rank is not None:
        raise InputError(
            f"{name}.rank does not go with lengths: all ranks of a replica have its microbatches"
        )
    for rank in ranks(table):
        if rank >= recipe.cluster.gpus:
            raise InputError(
                f"{name}.rank = {rank} is not among the {recipe.cluster.gpus} ranks of the job"
            )
    _stall(recipe, table, name)
    if table.replicas is not None:
        _sample(recipe, table, f"{name}.noise.replicas")


def _sample(recipe: Recipe, table: PerturbationSection, name: str) -> None:
    """Refuse a sample of replicas where they do more than meet at the end of their step."""
    p, dp = recipe.parallelism, recipe.parallelism.dp or 1
    if (table.replicas or 0) > dp:
        raise InputError(f"{name} = {table.replicas} is more than parallelism.dp = {dp}")
    others = {
        "a rank": table.rank is not None,
        "other [[perturbations]]": len(recipe.perturbations) > 1,
        f"parallelism.ep = {p.ep}": p.ep > 1,
        f"parallelism.optimizer_instances = {p.optimizer_instances}": p.optimizer_instances > 1,
        f'schedule.name = "{recipe.schedule.name}"': not recipe.flushed,
        f"simulation.steps = {recipe.simulation.steps}": (recipe.simulation.steps or 1) > 1,
    }
    for what, there in others.items():
        if there:
            raise InputError(
                f"{name} does not go with {what}: it takes replicas that are alike and meet only "
                "where they reduce gradients and update weights, once; leave one of them out"
            )


def ranks(table: PerturbationSection) -> tuple[int, ...]:
    """Return the ranks that a table names; empty for all ranks."""
    return (table.rank,) if isinstance(table.rank, int) else table.rank or ()


def _stall(recipe: Recipe, table: PerturbationSection, name: str) -> None:
    for key in ("stall", "at"):
        said = getattr(table, key)
        if said is not None:
            try:
                seconds = units.parse(said, "s")
            except InputError as error:
                raise InputError(f"{name}.{key}: {error}") from None
            if seconds > 1e6:
                raise InputError(f"{name}.{key} = {said} is longer than 1e6 s; less would do")
    if table.step is not None and table.at is not None:
        raise InputError(f"{name} has both step and at; leave one of them out")
    steps = recipe.simulation.steps or 1
    if (table.step or 0) >= steps:
        raise InputError(
            f"{name}.step = {table.step} is not among the {steps} steps of simulation.steps, "
            "counted from 0"
        )
