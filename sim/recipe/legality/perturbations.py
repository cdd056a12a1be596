"""Can a recipe's perturbations be? Each check is one sentence."""

from __future__ import annotations

from schedules.input_error import InputError
from sim import units
from sim.recipe.recipe import Recipe
from sim.recipe.sections import PerturbationSection

EFFECTS = ("compute", "noise", "lengths", "bandwidth", "stall")
ONLY = {"link": "bandwidth", "step": "stall", "at": "stall", "stream": "stall"}
"""Keys that only one effect has."""


def check(recipe: Recipe) -> None:
    """Raise InputError for the first table of [[perturbations]] that says too much or too little.

    Names of links are checked where the machine is known.
    """
    for k, table in enumerate(recipe.perturbations):
        _one(recipe, table, f"perturbations[{k}]")


def _one(recipe: Recipe, table: PerturbationSection, name: str) -> None:
    effects = [key for key in EFFECTS if getattr(table, key) is not None]
    if len(effects) != 1:
        said = " and ".join(effects) or "nothing"
        raise InputError(f"{name} has {said} of {', '.join(EFFECTS)}; exactly one would do")
    for key, effect in ONLY.items():
        if getattr(table, key) is not None and effects != [effect]:
            raise InputError(f"{name}.{key} goes with {effect}, not with {effects[0]}")
    if table.bandwidth is not None and table.link is None:
        raise InputError(f"{name}.link is missing; bandwidth needs it, the links that are slow")
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


def ranks(table: PerturbationSection) -> tuple[int, ...]:
    """The ranks that a table names; none: all."""
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
        raise InputError(f"{name} has step and at; one of them would do")
    steps = recipe.simulation.steps or 1
    if (table.step or 0) >= steps:
        raise InputError(
            f"{name}.step = {table.step} is not among the {steps} that simulation.steps runs, "
            "counted from 0"
        )
