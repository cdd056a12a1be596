"""`check` says of memory what `run` says: cases that once differed, and drawn recipes.

``TRAINCAST_MEMORY=500 pytest tests/sim/runs/test_check.py`` draws so many, of up to 16 ranks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from schedules.input_error import InputError
from sim.builder.groups import Lane, twin
from sim.builder.job import Job
from sim.recipe import recipe_file
from sim.recipe.recipe import Recipe
from sim.runs.check import check
from sim.runs.run import Result, job_of, run
from sim.runs.untimed_figures import memory
from tests.sim.runs.test_combinations import DEGREES, KEYS, recipe_of, settled

pytestmark = pytest.mark.slow

Traincast = Callable[..., tuple[int, str, str]]
FEW, MANY = 40, int(os.environ.get("TRAINCAST_MEMORY", "48"))
CLOSE = 1e-9
FIGURES = ("peak_bytes", "by_category", "device_bytes", "reserved_bytes", "allocated_bytes")
SMALL = [of for of in DEGREES if np.prod([*of.values()]) <= 4]
OFFLOADED = [
    "activations",
    {"activations": 0.5},
    {"activations": 0.5, "by": "stage"},
    "optimizer",
    {"optimizer": 0.5, "overlap": True},
]
SIZES: list[dict[str, Any]] = [{}, {}, {"hidden": 2048, "sequence": 2048}]
SCHEDULES: list[dict[str, Any]] = [
    {"name": "zb_1p"},
    {"name": "zb_2p"},
    {"name": "v_half"},
    {"name": "interleaved_1f1b", "chunks": 3},
]
WAYS: dict[str, list[Any]] = {
    "offload": [None] * 5 + OFFLOADED,
    "weight_gradients": ["passing", "cached", "kept"],
    "grad_dtype": ["fp32", "bf16"],
    "dtype": ["bf16", "bf16", "fp16", "fp32"],
    "micro_batch": [1, 1, 2],
    "clip": [True, True, False, "post"],
}
"""Of the training, besides what :data:`tests.sim.runs.test_combinations.KEYS` draws."""


def drawn(random: Random, small: bool) -> dict[str, Any]:
    """A recipe, which may be refused."""
    c = {key: random.choice(values) for key, values in KEYS.items()}
    data = recipe_of(settled(c | random.choice(SMALL if small else DEGREES)))
    size = {"layers": 4} if small else random.choice(SIZES)
    data["model"] |= size | {"fused": random.choice([True, True, False, "except_gate"])}
    data["cluster"]["topology"] = random.choice(["dgx_h100", "dgx_b200"])
    data["parallelism"]["bucket_mb"] = random.choice([0.5, 2.0, 40.0])
    if random.random() < 0.5:
        data["schedule"] = random.choice(SCHEDULES)
    ways = {key: random.choice(values) for key, values in WAYS.items()}
    data["training"] |= ways
    data["training"]["global_batch"] *= ways["micro_batch"]
    data["simulation"]["allocator"] = random.choice(["exact", "exact", "caching", "expandable"])
    return data


def legal(seed: int, small: bool) -> Recipe:
    """The first one drawn that is not refused."""
    random = Random(seed)
    while True:
        try:
            recipe = recipe_file.parse(drawn(random, small))
            job_of(recipe)
        except InputError:
            continue
        return recipe


def place(job: Job, rank: int) -> tuple[int, ...]:
    """What tells ranks of other memory apart: their pipeline rank and the programs they run."""
    *lane, q = np.argwhere(job.ranks == rank)[0].tolist()
    return (q, *twin(job, Lane(*lane)))


def must_agree(recipe: Recipe) -> tuple[dict[str, Any], Result]:
    """What check says and the run, once all their figures are the same on every rank."""
    said, result = check(recipe), run(recipe)
    ranks = {entry["rank"]: entry for entry in said["memory"]}
    places = {place(result.job, rank): entry for rank, entry in ranks.items()}
    ran = memory(recipe, result.job, result.cluster, result.timeline)
    assert {place(result.job, entry["rank"]) for entry in ran} == places.keys()
    for entry in ran:
        other = ranks.get(entry["rank"]) or places[place(result.job, entry["rank"])]
        for name in [name for name in FIGURES if name in entry]:
            assert other[name] == pytest.approx(entry[name], rel=CLOSE), name
        assert other["at_peak"] == entry["at_peak"]
    return said, result


@pytest.mark.parametrize(
    "seed",
    [pytest.param(k, marks=pytest.mark.slow) if k >= FEW else k for k in range(MANY)],
)
def test_check_and_run_say_the_same_of_what_is_drawn(seed: int) -> None:
    must_agree(legal(seed, small=seed < FEW))


RECIPE = """
model = { layers = 2, hidden = 256, heads = 4, vocab = 512, sequence = 256 }
cluster = { topology = "dgx_h100", gpus = 2 }
training.global_batch = 4
"""
RAN = {
    "7002": [3750963200.0],
    "7066": [398434304.0, 393871360.0],
    "7074": [2538719232.0],
    "7120": [142114816.0, 133201920.0],
}
"""Bytes at the peak of each simulated rank."""


@pytest.mark.parametrize("name", RAN)
def test_cases_that_once_differed(shared: Path, name: str) -> None:
    """By -15.1, -48.3, -13.5 and -14.8 %: split gradients wait for reductions, whole ones do not.

    Ranks 0 and 1 of the last have other tokens of a sequence.
    """
    file = shared.parent / "cases" / "memory" / f"06_check_vs_run_{name}.toml"
    if not file.exists():
        pytest.skip(f"needs {file}, which is not here")
    said, _ = must_agree(recipe_file.load(file))
    assert [entry["peak_bytes"] for entry in said["memory"]] == RAN[name]
    assert said["simulated"]


def test_the_command_says_whether_it_simulated(tmp_path: Path, traincast: Traincast) -> None:
    """Split gradients come and go beside kernels, whole ones do not."""
    file = tmp_path / "recipe.toml"
    file.write_text(RECIPE)
    for zero, simulated in ((1, False), (2, True)):
        way = ("check", file, "--set", f"parallelism.zero={zero}")
        assert json.loads(traincast(*way, "--json")[1])["simulated"] == simulated
        assert ("the step was simulated" in traincast(*way)[1]) == simulated
