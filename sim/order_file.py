"""``schedule.csv``: the order of a recipe from a file. Does it fit the job?"""

from __future__ import annotations

import os
from pathlib import Path

import schedules
from schedules.from_csv import Shape, file_shape
from sim.recipe import Recipe, ScheduleSection
from sim.refusals import show

NAME = "from_csv"
"""What such an order is called in a complete recipe."""


def complete(section: ScheduleSection, pp: int, folder: Path) -> ScheduleSection:
    """The section with its number of chunks; where it has a file, with its path and name.

    Raises ValueError, in one sentence, for an order that is not for ``pp`` ranks.
    """
    if section.csv is None:
        if section.name == NAME:
            raise ValueError(f'schedule.name = "{NAME}" needs schedule.csv, the file of the order')
        chunks = section.chunks or schedules.stages_per_rank(section.name)
        return section.model_copy(update={"chunks": chunks})
    if "name" in section.model_fields_set and section.name != NAME:
        raise ValueError(
            f"schedule.name = {show(section.name)} and schedule.csv are both given; "
            "leave one of them out"
        )
    path = Path(os.path.normpath(folder / section.csv))
    if not path.is_file():
        raise ValueError(f"schedule.csv: there is no file {path}")
    chunks = _chunks(path, file_shape(path), pp, section.chunks)
    return section.model_copy(update={"name": NAME, "csv": str(path.resolve()), "chunks": chunks})


def check(recipe: Recipe) -> None:
    """Raise ValueError, in one sentence, for an order of another number of microbatches."""
    if recipe.schedule.csv is None:
        return
    found, training = file_shape(recipe.schedule.csv).microbatches, recipe.training
    dp = recipe.parallelism.dp or 1
    if found != recipe.microbatches:
        raise ValueError(
            f"the order in {recipe.schedule.csv} has {found} microbatches, but a pipeline has "
            f"{recipe.microbatches} (global_batch ÷ micro_batch ÷ dp); training.global_batch = "
            f"{found * training.micro_batch * dp} would do"
        )


def _chunks(path: Path, found: Shape, pp: int, given: int | None) -> int:
    """Stages per rank of an order that is for ``pp`` ranks."""
    there = f"the order in {path} has"
    if found.ranks != pp:
        raise ValueError(
            f"{there} {found.ranks} rows, one per rank, but parallelism.pp = {pp}; "
            f"pp = {found.ranks} would do"
        )
    chunks, rest = divmod(found.stages, found.ranks)
    if rest or not chunks:
        raise ValueError(
            f"{there} {found.stages} stages on {found.ranks} ranks; "
            f"{max(1, chunks) * found.ranks} or another multiple of the ranks would do"
        )
    if given not in (None, chunks):
        raise ValueError(
            f"{there} {found.stages} stages on {found.ranks} ranks, but schedule.chunks = {given}; "
            f"chunks = {chunks} would do, or none"
        )
    return chunks
