"""Checks the search: its bound on drawn layouts, its answer on drawn spaces, and large jobs.

``python -m validation.search`` prints the tables of ``validation/search.md``; with names of parts
(bound, spaces, large) only those.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import tomli_w

from schedules.input_error import InputError
from sim.engine import DeadlockError
from sim.recipe.recipe import Recipe
from sim.runs.check import check
from sim.runs.row import row
from sim.runs.run import keeping, run
from sim.search import room
from sim.search.bound import bound
from sim.search.search import search
from sim.search.sketch import Sketch
from sim.search.space import Layout, Space, space
from sim.table import markdown
from sim.table import table as lines

LAYOUTS, SPACES, LEAST, MOST, GPUS = 2000, 20, 20, 200, 16
SMALL = {"layers": 8, "hidden": 1024, "heads": 16, "vocab": 32000, "sequence": 2048}
EXPERTS = {"experts": 8, "topk": 2, "expert_ffn": 512}
JOBS: dict[str, tuple[dict[str, Any], str]] = {
    "dense": (SMALL, "dgx_h100"),
    "grouped queries": ({**SMALL, "kv_heads": 4, "ffn": 2816, "gated": True}, "dgx_a100"),
    "uneven layers": ({**SMALL, "layers": 6, "hidden": 512, "heads": 8}, "dgx_a100"),
    "mixture": ({**SMALL, "hidden": 512, "heads": 8, **EXPERTS}, "dgx_h100"),
    "mixture, dense first": ({**SMALL, "hidden": 512, "heads": 8, **EXPERTS, "dense_layers": 1},
                             "dgx_h100"),
}  # fmt: skip
"""Small models and the machines that they are drawn for."""
LARGE = (
    ("Llama 3 70B", "llama3-70b", 8192, 64, 256, 30),
    ("Llama 3 70B", "llama3-70b", 8192, 256, 512, 30),
    ("DeepSeek-V3", "deepseek-v3", 4096, 2048, 15360, 8),
)
"""Name, preset, sequence, GPUs of DGX H100, global batch and budget."""


class Tried(NamedTuple):
    """One drawn layout: its bounds over what was found."""

    job: str
    time: float  # bound over simulated time
    memory: float  # bytes added up over those of check


class Answered(NamedTuple):
    """One drawn space: the search against simulating every layout."""

    job: str
    gpus: int
    layouts: int
    simulated: int  # by the search
    same: bool  # the ten best, to the bit
    smallest: bool  # the fastest has the smallest tp x pp that fits
    loss: float  # time of the fastest with the smallest tp x pp over the fastest of all, less 1


def written(folder: Path, model: dict[str, Any], topology: str, batch: int, **more: Any) -> Path:
    """Write a recipe and return its path."""
    data = {"model": model, "cluster": {"topology": topology, "gpus": GPUS},
            "training": {"global_batch": batch, **more}}  # fmt: skip
    path = folder / "recipe.toml"
    path.write_text(tomli_w.dumps(data))
    return path


def drawn(of: Space, random: Random) -> Iterator[tuple[Layout, Recipe]]:
    """Yield legal layouts of a space, each group equally often."""
    groups = list(of.groups())
    while True:
        members = list(of.members(random.choice(groups)))
        layout = random.choice(members) if members else {}
        recipe = of.legal(layout) if layout else None
        if recipe:
            yield layout, recipe


def bounds(folder: Path, count: int = LAYOUTS) -> list[Tried]:
    """Compare the bounds of drawn layouts with their simulated time and examined memory."""
    out, random = list[Tried](), Random(0)
    for name, (model, topology) in JOBS.items():
        of = space(written(folder, model, topology, 32), GPUS)
        some = drawn(of, random)
        while sum(one.job == name for one in out) < count // len(JOBS):
            _, recipe = next(some)
            try:
                out.append(_tried(name, of, recipe))
            except (InputError, DeadlockError):
                continue
    return out


def _tried(name: str, of: Space, recipe: Recipe) -> Tried:
    sketch = Sketch.of(recipe, of.cluster(recipe))
    with keeping():
        found = row(run(recipe))
    held = max(entry["device_bytes"] for entry in check(recipe)["memory"])
    return Tried(name, bound(sketch) / found["step_time_s"], room.least(sketch) / held)


def spaces(folder: Path, which: Sequence[int] = range(SPACES)) -> list[Answered]:
    """Compare the answers of searches with those of simulating every layout."""
    return [_drawn_space(folder, k) for k in which]


def _drawn_space(folder: Path, k: int) -> Answered:
    """Draw the k-th space until it has a number of layouts that all can be simulated."""
    random, name = Random(k), list(JOBS)[k % len(JOBS)]
    model, topology = JOBS[name]
    while True:
        path, gpus = written(folder, model, topology, 16), random.choice((2, 4, 8))
        of = space(path, gpus, _fixed(random))
        legal = [m for g in of.groups() for m in of.members(g) if of.legal(m)]
        if LEAST <= len(legal) <= MOST:
            return _answered(name, path, of, legal)


def _fixed(random: Random) -> dict[str, list[Any]]:
    """Draw what leaves a small space: a kind of shards, and some values of other keys."""
    zero = random.choice((0, 1, 2, 3))
    return {
        "parallelism.zero": [zero],
        "parallelism.fsdp": [None],
        "parallelism.cp": [1, 2][: random.choice((1, 2))],
        "training.recompute": random.choice((["none"], ["none", "full"], ["selective"])),
        "training.micro_batch": random.choice(([1], [2], [1, 2])),
    }


def _answered(name: str, path: Path, of: Space, legal: Sequence[Layout]) -> Answered:
    found = search(path, of.gpus, "step_time", MOST, of.given, jobs=1)
    every = []
    for layout in legal:
        with keeping():
            one = row(run(of.recipe(layout)))
        degree = layout["parallelism.tp"] * layout["parallelism.pp"]
        every += [(one["step_time_s"], one["peak_bytes"], degree)] if one["fits"] else []
    every.sort()
    mine = [(of["step_time_s"], of["peak_bytes"]) for of in found.best]
    least = min(degree for *_, degree in every)
    small = min(seconds for seconds, _, degree in every if degree == least)
    return Answered(
        name, of.gpus, len(legal), len(found.simulated), mine == [e[:2] for e in every[:10]],
        every[0][2] == least, small / every[0][0] - 1,
    )  # fmt: skip


def large(folder: Path) -> Iterator[dict[str, Any]]:
    """Search for the layouts of large jobs on all CPUs; yield a row of each."""
    for name, preset, sequence, gpus, batch, budget in LARGE:
        model = {"preset": preset, "sequence": sequence}
        path = written(folder, model, "dgx_h100", batch)
        begin = perf_counter()
        found = search(path, gpus, budget=budget)
        yield {
            "job": f"{name}, {gpus:,} H100, batch {batch:,}",
            "best": found.name(found.best[0]),
            "step": found.best[0]["step_time_s"],
            "simulated": len(found.simulated),
            "rows": len(found.rows),
            "gap": found.gap,
            "seconds": perf_counter() - begin,
        }


def shown(parts: Sequence[str]) -> Iterator[str]:
    """Yield the tables of these parts as Markdown."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        if "bound" in parts:
            yield _of_bounds(bounds(folder))
        if "spaces" in parts:
            yield _of_spaces(spaces(folder))
        if "large" in parts:
            yield markdown(lines([*large(folder)], "job", "best", ("step, s", "step", ".4g"),
                                 "simulated", "rows", ("gap", "gap", ".1%"),
                                 ("seconds", "seconds", ".0f")))  # fmt: skip


def _of_bounds(found: Sequence[Tried]) -> str:
    rows = [(name, [one for one in found if one.job == name]) for name in JOBS]
    rows.append(("all", list(found)))
    figures = [
        (name, len(some), *_spread([one.time for one in some]), *_spread([o.memory for o in some]))
        for name, some in rows
    ]
    heads = ("layouts of", "number", "bound / time: least", "median", "most",
             "bytes / examined: least", "median ", "most ")  # fmt: skip
    return markdown(lines(figures, *heads))


def _spread(values: Sequence[float]) -> tuple[str, str, str]:
    return f"{min(values):.3f}", f"{median(values):.3f}", f"{max(values):.4f}"


def _of_spaces(found: Sequence[Answered]) -> str:
    rows = [
        (one.job, one.gpus, one.layouts, one.simulated, "yes" if one.same else "NO",
         "yes" if one.smallest else f"no: {one.loss:.1%} slower")
        for one in found
    ]  # fmt: skip
    heads = ("space of", "GPUs", "layouts", "simulated", "ten best as of all",
             "smallest tp x pp that fits wins")  # fmt: skip
    return markdown(lines(rows, *heads))


if __name__ == "__main__":
    for text in shown(sys.argv[1:] or ["bound", "spaces", "large"]):
        print(text, flush=True)
