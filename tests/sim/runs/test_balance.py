"""Layers per stage by simulated runtime: against every split there is, and in whole steps."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random

import pytest

from sim.builder.job import Job
from sim.machine import cluster as clusters
from sim.recipe import recipe_file
from sim.runs import contiguous
from sim.runs.balance import Cost, balance, costs, layer_seconds, split
from sim.runs.run import job_of, load, run
from sim.runs.stage_times import stage_timelines
from traces import schedule_csv
from traincast import main as cli

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[3] / "validation/recipes"


def splits(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to give each stage at least one layer."""
    if stages == 1:
        yield (layers,)
        return
    for first in range(1, layers - stages + 2):
        for rest in splits(layers - first, stages - 1):
            yield (first, *rest)


Ranks = dict[int, tuple[int, ...]]


def slowest(counts: tuple[int, ...] | list[int], each: list[Cost], ranks: Ranks) -> float:
    busy = dict.fromkeys({rank for some in ranks.values() for rank in some}, 0.0)
    for stage, layers in enumerate(counts):
        for rank in ranks[stage]:
            seconds = each[stage].fixed + each[stage].layer * layers
            busy[rank] += seconds / len(ranks[stage])
    return max(busy.values())


PLACES: dict[str, Ranks] = {  # which ranks run each stage: one each, interleaved, in a V
    "one": {0: (0,), 1: (1,), 2: (2,), 3: (3,)},
    "loop": {0: (0,), 1: (1,), 2: (0,), 3: (1,)},
    "v": {0: (0,), 1: (1,), 2: (1,), 3: (0,)},
    "dual": {0: (0, 3), 1: (1, 2), 2: (1, 2), 3: (0, 3)},  # DualPipe
    "odd": {0: (0, 4), 1: (1, 3), 2: (2,), 3: (1, 3), 4: (0, 4)},  # its middle has one stage
}


@pytest.mark.parametrize("place", PLACES)
def test_no_split_is_better(place: str) -> None:
    """Random costs of each stage, whole seconds; all splits of up to 12 layers, tried."""
    random, ranks = Random(7), PLACES[place]
    stages = len(ranks)
    assert len(list(splits(12, 4))) == 165  # 11 choose 3
    for _ in range(40):
        each = [Cost(random.randint(0, 20), random.randint(1, 9)) for _ in range(stages)]
        layers = random.randint(stages, 12)
        found = split(layers, each, ranks)
        assert sum(found) == layers
        assert min(found) >= 1
        best = min(slowest(counts, each, ranks) for counts in splits(layers, stages))
        assert slowest(found, each, ranks) == best


def judged(
    counts: tuple[int, ...], layers: list[int], fixed: list[int], ranks: Ranks
) -> tuple[float, float]:
    """The slowest rank's seconds, and the sum of the squares of the stages'."""
    ends = [0, *accumulate(counts)]
    each = [f + sum(layers[a:b]) for f, (a, b) in zip(fixed, pairwise(ends), strict=True)]
    busy = dict.fromkeys((rank for some in ranks.values() for rank in some), 0.0)
    for stage, seconds in enumerate(each):
        for rank in ranks[stage]:
            busy[rank] += seconds / len(ranks[stage])
    return max(busy.values()), sum(seconds**2 for seconds in each)


ALIKE = PLACES | {
    "loop of 3": {s: (s % 3,) for s in range(6)},
    "v of 3": {s: (min(s, 5 - s),) for s in range(6)},
}


@pytest.mark.parametrize("place", ALIKE)
def test_no_split_of_unlike_layers_is_better(place: str) -> None:
    """All splits are tried; of the best ones it is one whose stages' squares sum to least."""
    random, ranks = Random(11), ALIKE[place]
    for _ in range(20):
        layers = [random.randint(1, 9) for _ in range(random.randint(len(ranks), 10))]
        fixed = [random.randint(0, 12) for _ in ranks]
        counts = contiguous.split(layers, fixed, ranks)

        assert (sum(counts), min(counts) >= 1) == (len(layers), True)
        best = min(judged(c, layers, fixed, ranks) for c in splits(len(layers), len(ranks)))
        assert judged(tuple(counts), layers, fixed, ranks) == best


def test_three_stages_per_rank_are_no_worse_than_even_ones() -> None:
    """And no single layer of the slowest rank could go elsewhere to make it faster."""
    ranks = {s: (s % 2,) for s in range(6)}
    for seed in range(20):
        random = Random(seed)
        layers, fixed = [random.randint(1, 9) for _ in range(12)], [0.0] * 6
        counts = contiguous.split(layers, fixed, ranks)
        work = contiguous.Work(layers, fixed, [((0, 2, 4), 1), ((1, 3, 5), 1)])
        assert max(contiguous.loads(work, counts)) <= max(contiguous.loads(work, [2] * 6))


def test_equal_stages_get_equal_layers_and_the_middle_the_rest() -> None:
    ranks = PLACES["one"]
    assert split(8, [Cost(0.1, 0.3)] * 4, ranks) == [2, 2, 2, 2]
    assert split(10, [Cost(0.1, 0.3)] * 4, ranks) == [2, 3, 3, 2]
    assert split(5, [Cost(0.1, 0.3)], {0: (0,)}) == [5]


def test_dualpipe_is_balanced(tmp_path: Path) -> None:
    """Its ranks run two stages each, for half of the microbatches; so does its order in a file."""
    path = RECIPES / "zero_bubble_14.6b_1f1b.toml"
    changes: dict[str, object] = {
        "model.layers": 10, "model.vocab": 256_000, "cluster.gpus": 4, "parallelism.pp": 4,
        "training.global_batch": 8, "schedule.layers_per_stage": None,
        "parallelism.p2p": "direction", "schedule.name": "dualpipe",
    }  # fmt: skip
    even = changes | {"schedule.layers_per_stage": [2, 3, 3, 2]}
    found = balance(load(path, even))
    assert sum(found) == 10
    assert found[0] + found[3] < found[1] + found[2]  # embedding and head are on the same ranks
    steps = [
        run(path, even | {"schedule.layers_per_stage": split}) for split in ([2, 3, 3, 2], found)
    ]
    assert steps[1].timeline.seconds <= steps[0].timeline.seconds
    order = tmp_path / "order.csv"
    order.write_text(schedule_csv.text(steps[0].job.plan))
    assert balance(load(path, even | {"schedule.name": None, "schedule.csv": str(order)})) == found


SETTINGS = [{}, {"recompute": "full"}, {"tp": 2, "sp": True}]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("schedule", ["one_f_one_b", "zb_h1"])
def test_costs_are_those_of_the_stage_that_runs(
    small_job: Callable[..., Job], setting: dict[str, object], schedule: str
) -> None:
    """Linear: what one and two layers cost gives what five do; the head makes the last dearer."""
    job = small_job(pp=4, schedule=schedule, **setting)
    cluster = clusters.load("dgx_a100", job.mesh.world)
    each = costs(job, cluster)
    kinds = "FB" if schedule == "one_f_one_b" else "FIW"
    for stage in range(4):
        ran = stage_timelines(job, cluster, range(5), stage == 0, stage == 3)
        assert each[stage].seconds(5) == pytest.approx(sum(ran[k].seconds for k in kinds))
    assert each[1] == each[2]
    assert each[3].fixed > each[1].fixed
    assert each[0].fixed > each[1].fixed


MIXTURE = """
model = { preset = "deepseek-v3", layers = 9, experts = 8, vocab = 4096 }
cluster = { topology = "dgx_h100", gpus = 4 }
parallelism = { pp = 4 }
training = { global_batch = 8 }
schedule = { layers_per_stage = [2, 3, 2, 2], name = "NAME" }
"""


@pytest.mark.parametrize("name", ["one_f_one_b", "zb_h1"])
def test_dense_layers_are_shorter_than_mixtures(name: str) -> None:
    """What the two kinds cost is what a stage of both takes, and the split knows it."""
    recipe = recipe_file.parse(tomllib.loads(MIXTURE.replace("NAME", name)))
    job = job_of(recipe)
    cluster = clusters.load("dgx_h100", 4)
    each, ends = layer_seconds(job, cluster), costs(job, cluster)
    assert each[0] < each[3]
    ran = stage_timelines(job, cluster, [2, 3, 4])
    whole = sum(ran[kind].seconds for kind in ("FB" if name == "one_f_one_b" else "FIW"))
    assert ends[1].fixed + each[0] + 2 * each[3] == pytest.approx(whole, rel=0.02)
    seconds = [each[0]] * 3 + [each[3]] * 6
    found = balance(recipe)
    ranks = {s: (s,) for s in range(4)}
    assert found == contiguous.split(seconds, [end.fixed for end in ends], ranks, 0.01)
    assert found[0] > found[2]


@pytest.mark.parametrize("schedule", ["one_f_one_b", "zb_h1"])
@pytest.mark.parametrize("vocab", [32_000, 128_000])
def test_gpt_14_6b_is_not_slower_balanced(schedule: str, vocab: int) -> None:
    """Qi et al. 2023's job, 46 layers on 16 stages: the whole step, balanced against even.

    With the paper's vocabulary the even split is the best; a larger one makes the head dearer than
    a layer, and the last stage gives one to the first.
    """
    path = RECIPES / "zero_bubble_14.6b_1f1b.toml"
    changes = {"schedule.name": schedule, "model.vocab": vocab}
    even = load(path, changes)
    assert even.layers_per_stage == (2, *[3] * 14, 2)
    found = balance(even)
    assert found == ([2, *[3] * 14, 2] if vocab == 32_000 else [*[3] * 15, 1])
    steps = [
        run(path, changes | {"schedule.layers_per_stage": layers}).timeline.seconds
        for layers in (list(even.layers_per_stage), found)
    ]
    print(f"\n{schedule}, {found}: {steps[1]:.4f} s, even {steps[0]:.4f} s")
    assert steps[1] <= steps[0]
    assert (steps[1] < steps[0]) == (vocab == 128_000)


def test_check_prints_the_line_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    """``traincast check RECIPE --balance``, which a recipe takes as it is."""
    path = RECIPES / "zero_bubble_14.6b_1f1b.toml"
    best = balance(load(path))
    for option, reads in (([], tomllib.loads), (["--json"], json.loads)):
        with pytest.raises(SystemExit) as end:
            cli.main(["check", str(path), "--balance", *option])
        assert end.value.code == 0
        assert reads(capsys.readouterr().out) == {"layers_per_stage": best}
