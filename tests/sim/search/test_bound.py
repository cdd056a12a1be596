"""The bound is never above what is simulated, and near it; memory that is added up likewise."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import schedules
from schedules.search.timing import ends
from sim.builder.job import without_plan
from sim.builder.stage import stage_programs
from sim.recipe import recipe_file
from sim.runs.check import check
from sim.runs.row import row
from sim.runs.run import run
from sim.runs.shared import cluster_of
from sim.search import room
from sim.search.bound import Stages, Way, _behind, _kernels, bound
from sim.search.plans import lines
from sim.search.prices import prices
from sim.search.sketch import Sketch
from sim.search.space import space
from sim.search.stages import Cost, costs, looks, span

DENSE = """
[model]
layers = 8
hidden = 1024
heads = 16
vocab = 32000
sequence = 2048
[cluster]
topology = "dgx_h100"
gpus = 16
[training]
global_batch = 32
"""
MIXTURE = DENSE.replace("vocab", "experts = 8\ntopk = 2\nexpert_ffn = 512\ndense_layers = 1\nvocab")


def drawn(folder: Path, text: str, count: int, given=None, seed: int = 3):
    """Legal layouts of a recipe, drawn from its space."""
    path = folder / "recipe.toml"
    path.write_text(text)
    found, rng = space(path, 16, given), random.Random(seed)
    groups = list(found.groups())
    rng.shuffle(groups)
    out = []
    while len(out) < count:
        members = list(found.members(groups.pop()))
        recipe = found.legal(rng.choice(members)) if members else None
        out += [recipe] * (recipe is not None)
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "given"),
    [
        (DENSE, {}),
        (MIXTURE, {}),
        (DENSE, {"schedule.name": ["dualpipe", "zb_v", "v_min"], "parallelism.pp": [2, 4]}),
    ],
    ids=["dense", "mixture", "other schedules"],
)
def test_no_step_is_shorter_than_its_bound_nor_fuller_than_its_room(
    text: str, given: dict, tmp_path: Path
) -> None:
    """The command ``python -m validation.search`` does this for 2,000 layouts."""
    for recipe in drawn(tmp_path, text, 4, given):
        sketch = Sketch.of(recipe, cluster_of(recipe))
        least, found = bound(sketch), row(run(recipe))
        assert 0.3 * found["step_time_s"] < least <= found["step_time_s"]
        held = max(entry["device_bytes"] for entry in check(recipe)["memory"])
        assert 0.4 * held < room.least(sketch) <= held
        assert room.always(sketch) <= held


SECONDS = {"F": 5.0, "B": 7.0, "I": 4.0, "W": 3.0}


@pytest.mark.parametrize(
    "name", ["one_f_one_b", "gpipe", "zb_h1", "interleaved_1f1b", "one_f_one_b_v"]
)
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 3), (2, 4), (4, 8)])
@pytest.mark.parametrize("hop", [0.0, 2.0])
def test_paths_through_a_pipeline_are_those_of_its_timing(
    name: str, ranks: int, microbatches: int, hop: float
) -> None:
    """Equal where one rank is always busy, never longer: against the end of each step by itself."""
    recipe = small_pipeline(name, ranks, microbatches)
    order = lines(recipe)
    assert order is not None
    hops = [hop * (a != b) for a, b in pairwise(order.owner)]
    known = Stages([Cost(SECONDS, SECONDS, 0.0, SECONDS)] * recipe.stages, hops)
    way = Way.of(known, order)
    found = max(
        _kernels(q, order, way, _behind(q, order, known, way, shared=False), (0.0, 0.0))
        for q in range(ranks)
    )
    exact = max(of[-1] for of in ends(schedules.load(name)(ranks, microbatches), 5, 4, 3, hop))
    assert found <= exact + 1e-9
    if name in ("one_f_one_b", "gpipe") and not hop:
        assert found == pytest.approx(exact)
    assert found >= 0.8 * exact


def small_pipeline(name: str, ranks: int, microbatches: int):
    model = {"layers": 8, "hidden": 64, "heads": 4, "vocab": 512, "sequence": 64}
    stages = ranks * schedules.stages_per_rank(name)
    data = {
        "model": model,
        "cluster": {"topology": "dgx_h100", "gpus": ranks},
        "parallelism": {"pp": ranks},
        "schedule": {"name": name, "layers_per_stage": [8 // stages] * stages},
        "training": {"global_batch": microbatches},
    }
    if "chunks" in schedules.options(name):
        data["schedule"]["chunks"] = 2
    return recipe_file.parse(data)


@pytest.mark.parametrize("text", [DENSE, MIXTURE], ids=["dense", "mixture"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_layers_cost_alike(text: str, recompute: str, tmp_path: Path) -> None:
    """Two layers tell what eight take: against the program of all eight."""
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    split = {"parallelism.tp": 2, "parallelism.sp": True, "training.recompute": recompute}
    recipe = recipe_file.load(path, split)
    job, of = without_plan(recipe), prices(cluster_of(recipe))
    found = costs(job, of, looks(job))[0]
    whole = stage_programs(job.of_stage(), range(8), first=True, last=True)

    def seconds(item) -> float:
        if hasattr(item, "work"):
            return of.kernel(item.work)[0]
        groups = {"tp": (0, 1), "ep": (0,), "etp": (0,)}
        return of.collective(item.collective, item.bytes, groups[item.axis], item.algorithm)

    for kind, program in whole.items():
        exact = span(program, [*map(seconds, program)])
        assert 0.98 * exact <= found.seconds[kind] <= exact * (1 + 1e-12), kind
    kept = sum(m.bytes for item in whole["F"] for m in item.memory)
    assert found.kept == pytest.approx(kept, rel=1e-12)
    assert np.all([found.most[kind] >= 0 for kind in "FBIW"])
