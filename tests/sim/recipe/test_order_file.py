"""``schedule.csv``: an order from a file is a schedule of a recipe, or is refused in a sentence."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

import schedules
from sim.recipe import recipe_file
from sim.runs.compare import by_schedule, compare
from sim.runs.run import job_of, load, run
from traces import schedule_csv

RECIPE = """
model = { preset = "gpt-22b", layers = 8, attention = "flash" }
cluster = { topology = "dgx_a100", gpus = 8 }
parallelism = { pp = 4, dp = 2 }
schedule = { SCHEDULE }
training = { global_batch = 16 }
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe of pp 4 and 8 microbatches whose order lies beside it."""
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders/order.csv").write_text(ORDER)
    file = tmp_path / "recipe.toml"
    file.write_text(RECIPE.replace("SCHEDULE", 'csv = "orders/order.csv"'))
    return file


ORDER = schedule_csv.text(schedules.load("one_f_one_b")(4, 8))


def same_times(recipe: Path, name: str, chunks: int, p2p: str) -> None:
    """The order from the file and the named one give one timeline, to the bit."""
    common = {"parallelism.p2p": p2p}
    mine = run(recipe, common)
    named = {"schedule.csv": None, "schedule.name": name}
    theirs = run(recipe, common | named | ({"schedule.chunks": chunks} if chunks > 1 else {}))
    assert mine.job.plan == theirs.job.plan
    assert mine.recipe.schedule.chunks == chunks
    assert np.array_equal(mine.timeline.start, theirs.timeline.start)
    assert np.array_equal(mine.timeline.end, theirs.timeline.end)


@pytest.mark.parametrize("p2p", ["direction", "pair"])
@pytest.mark.parametrize(("name", "chunks"), [("one_f_one_b", 1), ("interleaved_1f1b", 2)])
def test_a_written_order_gives_the_timeline_of_its_schedule(
    name: str, chunks: int, p2p: str, recipe: Path, traincast
) -> None:
    """As ``traincast schedule --csv`` writes it, run by ``traincast run``'s own call."""
    shape = ("--ranks", 4, "--microbatches", 8, *(("--chunks", chunks) if chunks > 1 else ()))
    order = recipe.parent / "orders/order.csv"
    assert traincast("schedule", name, *shape, "--csv", order)[0] == 0
    same_times(recipe, name, chunks, p2p)


def test_what_torch_runs_gives_the_timeline_of_1f1b(shared: Path, recipe: Path) -> None:
    """Its file with messages and FSDP's actions, and under Megatron-LM's batched exchanges."""
    for kind, p2p in (("comms", "direction"), ("compute", "batched")):
        file = shared / f"orders/torch/1F1B-executed_P4_M8_v1.{kind}.csv"
        if not file.exists():
            pytest.skip(f"needs {file.name} of torch, which is not in ../shared")
        (recipe.parent / "orders/order.csv").write_bytes(file.read_bytes())
        same_times(recipe, "one_f_one_b", 1, p2p)


def test_the_complete_recipe_loads_again_from_anywhere(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path is absolute, its name says where the order is from, and it is equal."""
    monkeypatch.chdir(tmp_path)
    job = load("recipe.toml")
    written = tomllib.loads(recipe_file.dump(job))["schedule"]
    assert written["csv"] == str(recipe.parent.resolve() / "orders/order.csv")
    assert written["name"] == "from_csv"
    elsewhere = tmp_path / "deep/er/recipe.toml"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text(recipe_file.dump(job))
    monkeypatch.chdir("/")
    assert load(elsewhere) == job
    assert job_of(load(elsewhere)) == job_of(job)


@pytest.mark.slow
def test_other_schedules_can_be_compared_with_it(recipe: Path) -> None:
    """A name takes the place of the file; another file does too."""
    ways = by_schedule(["gpipe", "zb_v"], load(recipe)) | {"own": {}}
    found = {way.name: way for way in compare(recipe, ways)}
    assert all(way.result for way in found.values())
    assert found["zb_v"].result.recipe.schedule.csv is None  # type: ignore[union-attr]


def test_layers_are_asked_for_where_they_do_not_come_out_even(recipe: Path) -> None:
    with pytest.raises(ValueError, match=r"write schedule\.layers_per_stage = \[2, 3, 3, 2\]"):
        load(recipe, {"model.layers": 10})
    split = [1, 3, 3, 1]
    assert load(recipe, {"schedule.layers_per_stage": split}).layers_per_stage == (1, 3, 3, 1)


DUAL = schedule_csv.text(schedules.load("dualpipe")(4, 8))
INTERLEAVED = schedule_csv.text(schedules.load("interleaved_1f1b")(4, 8))
STUCK = "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1"
TWO = {"parallelism.pp": 2, "parallelism.dp": 4}
WRONG: list[tuple[str, dict[str, object], str]] = [
    (ORDER, {"schedule.name": "gpipe"}, 'schedule.name = "gpipe" and schedule.csv are both given'),
    (ORDER, {"schedule.name": "one_f_one_b"}, "are both given; leave one of them out"),
    (ORDER, {"schedule.csv": None, "schedule.name": "from_csv"}, "needs schedule.csv, the file"),
    (ORDER, {"schedule.csv": ""}, "schedule.csv is empty"),
    (ORDER, {"schedule.csv": "none.csv"}, "schedule.csv: there is no file "),
    (ORDER, {"schedule.csv": "orders"}, "orders is a folder, not a file"),
    (ORDER, {"schedule.csv": "a" * 300}, "schedule.csv: cannot read "),
    (ORDER, {"cluster.topology": "a" * 300 + ".toml"}, ".toml: File name too long"),
    (ORDER, {"cluster.topology": "orders/"}, "orders is a folder, not a file"),
    (ORDER, {"model.preset": None, "model.hf": "a" * 300}, "aaa: File name too long"),
    (ORDER, {"parallelism.pp": 2, "parallelism.dp": 4}, "has 4 rows, one per rank, but"),
    (ORDER, {"training.global_batch": 8}, "training.global_batch = 16 would do"),
    (ORDER, {"training.global_batch": 8}, "has 8 microbatches, but a pipeline has 4"),
    (ORDER, {"training.global_batch": 15}, "14 or 16 would do"),
    (ORDER, {"schedule.chunks": 2}, "4 stages on 4 ranks, but schedule.chunks = 2; chunks = 1"),
    (ORDER, {"schedule.group": 4}, "has no group"),
    (INTERLEAVED, {"schedule.chunks": 1}, "but schedule.chunks = 1; chunks = 2 would do"),
    (INTERLEAVED, {"schedule.layers_per_stage": [2, 2, 2, 2]}, "but pp x chunks = 8 stages"),
    (ORDER.replace("3B", "4B"), {}, "3F0 has no backward"),
    ("0F0,0B0\n1F0,2F0,2B0,1B0", TWO, "3 stages on 2 ranks; 2 or another multiple"),
    ("0F0,0B0\n0F1,0B1", TWO, "0F1 is of stage 0, which rank 0 runs too"),
    ("0F0,0B0", TWO, "order.csv has 1 row, one per rank"),
    ("0F0,0B0\n1F0,1B0", TWO, "order.csv has 1 microbatch, but a pipeline"),
    (ORDER.replace("0B7", "0B7x"), {}, "line 1, cell 16: '0B7x' is no step"),
    (ORDER.replace("0B7", ""), {}, "0F7 has no backward"),
    ("", {}, "order.csv: the file has no steps"),
    (",\n,", {}, "order.csv: the file has no steps"),
    (
        STUCK,
        {"parallelism.pp": 2, "parallelism.dp": 4, "training.global_batch": 8},
        "deadlock: rank 0, position 1: 0B0 waits for rank 1, position 2: 1B0",
    ),
    (INTERLEAVED, {"parallelism.p2p": "batched"}, "deadlock: rank 0's exchange"),
    (INTERLEAVED, {"parallelism.p2p": "batched"}, '; p2p = "direction" runs it'),
    (
        schedule_csv.text(schedules.load("one_f_one_b")(4, 8), communication=True),
        {"parallelism.p2p": "batched"},
        "single sends and receives cannot be 'batched'",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("order", "overrides", "sentence"), WRONG)
def test_what_does_not_fit_is_one_sentence(
    order: str, overrides: dict[str, object], sentence: str, recipe: Path
) -> None:
    """When it is loaded, or when its order is checked, which running begins with."""
    (recipe.parent / "orders/order.csv").write_text(order)
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        job_of(load(recipe, overrides))
    assert sentence in str(error.value)


def test_an_order_of_two_directions_gives_the_timeline_of_dualpipe(recipe: Path) -> None:
    """Each of its stages is on two ranks."""
    (recipe.parent / "orders/order.csv").write_text(DUAL)
    same_times(recipe, "dualpipe", 1, "direction")
