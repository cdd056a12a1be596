"""The measured runs that a prediction names: ``python -m validation.measured`` writes them.

``sim/runs/measured.csv`` holds every step time of ``results.md`` with what :mod:`sim.runs.nearest`
compares, and the error that stands there.
"""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

import sim.runs
from sim.machine import topology
from sim.machine.cluster import Gpu
from sim.recipe import presets, recipe_file
from sim.recipe.recipe import Recipe
from sim.runs.nearest import job_of
from validation import tables
from validation.readme import RESULTS, published
from validation.tables import Row

TABLE = Path(sim.runs.__file__).parent / "measured.csv"
_JOB = ("gpu", "peak", "gpus", "parameters", "sharded", "pipeline", "fp8")
HEAD = ("row", "run", "family", *_JOB, "error")


def table(results: str) -> str:
    """Return the table, given the page of results: a line for each step time on it."""
    errors = published(results)
    rows = [row for name in tables.names() for row in tables.read(name).rows if row.family]
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEAD)
    writer.writerows(_line(row, errors[row.id][2] / 100) for row in rows if row.id in errors)
    return out.getvalue()


def _line(row: Row, error: float) -> tuple[object, ...]:
    recipe = recipe_file.load(row.recipe, row.overrides)
    gpu = Gpu(**topology.read(recipe.cluster.topology)["gpu"])
    job = job_of(recipe, gpu)
    name = f"{recipe.model.name} ({_size(recipe, job.parameters)}) on {job.gpus:,} {job.gpu}"
    flags = ("yes" if one else "no" for one in (job.sharded, job.pipeline, job.fp8))
    sizes = f"{job.peak:.4g}", job.gpus, f"{job.parameters:.4g}"
    return row.id, name, row.family, job.gpu, *sizes, *flags, f"{error:.3f}"


def _size(recipe: Recipe, held: float) -> str:
    """Return the parameters of a model in words, after its layers where its preset has more."""
    model, size = recipe.model, f"{held / 1e9:.3g}B"
    layers = recipe.architecture.layers
    preset = presets.preset(model.preset) if model.preset else {}
    cut = preset.get("name") == model.name and layers < preset["layers"]
    return f"{layers} layers, {size}" if cut else size


def main() -> None:
    """Write the table."""
    TABLE.write_text(table(RESULTS.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
