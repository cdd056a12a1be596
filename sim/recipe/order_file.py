"""A recipe's schedule from a file (code, or an order in ``schedule.csv``), and whether it fits."""

from __future__ import annotations

import os
from pathlib import Path

import schedules
from schedules.from_csv import Shape, file_shape, from_csv
from schedules.input_error import InputError
from schedules.user_code import is_path
from sim.files import regular
from sim.keys.refusals import show
from sim.recipe.recipe import Recipe, ScheduleSection

NAME = "from_csv"
"""The name of an order from a file in a complete recipe."""


def complete(section: ScheduleSection, pp: int, folder: Path) -> ScheduleSection:
    """Return the section with its number of chunks, and with the whole path of its file if any.

    Raises InputError, in one sentence, for an order that is not for ``pp`` ranks.
    """
    if section.csv is None:
        if section.name == NAME:
            raise InputError(f'schedule.name = "{NAME}" needs schedule.csv, the file of the order')
        name = section.name
        if is_path(name):  # a schedule outside the package
            found = regular(Path(os.path.normpath(folder / name)), "schedule.name")
            name = str(found.resolve())
        chunks = section.chunks or schedules.stages_per_rank(name)
        return section.model_copy(update={"name": name, "chunks": chunks})
    if "name" in section.model_fields_set and section.name != NAME:
        raise InputError(
            f"schedule.name = {show(section.name)} and schedule.csv are both given; "
            "leave one of them out"
        )
    path = regular(Path(os.path.normpath(folder / section.csv)), "schedule.csv")
    chunks = _chunks(path, file_shape(path), pp, section.chunks)
    return section.model_copy(update={"name": NAME, "csv": str(path.resolve()), "chunks": chunks})


def check(recipe: Recipe) -> None:
    """Raise InputError, in one sentence, for an order with another number of microbatches."""
    if recipe.schedule.csv is None:
        return
    path, training = recipe.schedule.csv, recipe.training
    found = file_shape(path).microbatches
    dp = recipe.parallelism.dp or 1
    if found != recipe.microbatches:
        raise _unfit(
            path,
            f"has {_count(found, 'microbatch', 'microbatches')}, but a pipeline has "
            f"{recipe.microbatches} (global_batch ÷ micro_batch ÷ dp); training.global_batch = "
            f"{found * training.micro_batch * dp} would do",
        )


def _chunks(path: Path, found: Shape, pp: int, given: int | None) -> int:
    """Return the stages per rank of an order that is for ``pp`` ranks."""
    ranks, stages = found.ranks, _count(found.stages, "stage", "stages")
    held = f"has {stages} on {_count(ranks, 'rank', 'ranks')}"
    if ranks != pp:
        rows = _count(ranks, "row", "rows")
        raise _unfit(
            path,
            f"has {rows}, one per rank, but parallelism.pp = {pp}; pp = {ranks} would do",
        )
    chunks, rest = divmod(found.stages, ranks)
    if rest or not chunks:
        raise _unfit(
            path,
            f"{held}; {max(1, chunks) * ranks} or another multiple of the ranks would do",
        )
    if given not in (None, chunks):
        raise _unfit(
            path,
            f"{held}, but schedule.chunks = {given}; chunks = {chunks} would do, or none",
        )
    return chunks


def _unfit(path: str | Path, why: str) -> InputError:
    """Return what is wrong with the order itself, or else why it does not fit the recipe."""
    try:
        from_csv(path)
    except InputError as error:
        return error
    return InputError(f"the order in {path} {why}")


def _count(number: int, one: str, several: str) -> str:
    """Return a number of things in words.

    >>> _count(1, "row", "rows"), _count(2, "row", "rows")
    ('1 row', '2 rows')
    """
    return f"{number} {one if number == 1 else several}"
