"""Ways that are compared fairly: stages balanced, the same memory for all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.runs.balance import balance
from sim.runs.check import check
from sim.runs.compare import by_schedule
from sim.runs.fair import Fit, balanced, in_memory, kept_stages
from sim.runs.run import load

TINY = """
model = { preset = "gpt-22b", layers = 6, hidden = 512, heads = 8, ffn = 2048, vocab = 4096 }
cluster = { topology = "dgx_a100", gpus = 2 }
parallelism = { pp = 2 }
training = { global_batch = 8 }
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    file = tmp_path / "recipe.toml"
    file.write_text(TINY)
    return file


def most(recipe: Path, **keys: Any) -> float:
    """The bytes of the rank that needs most."""
    over = {f"training.{key}": value for key, value in keys.items()}
    return max(entry["device_bytes"] for entry in check(load(recipe, over))["memory"])


@pytest.mark.slow
def test_stages_are_balanced_unless_the_recipe_gives_their_layers(tiny: Path) -> None:
    own = {"schedule.layers_per_stage": [2, 4]}
    base = load(tiny, own)
    ways = by_schedule(["gpipe", "zb_v"], base, own)
    kept = kept_stages(tiny, own, base)
    assert balanced(tiny, ways["gpipe"], kept)["schedule.layers_per_stage"] == [2, 4]
    split = balanced(tiny, ways["zb_v"], kept)["schedule.layers_per_stage"]
    assert split == balance(load(tiny, ways["zb_v"]))
    assert len(split) == 4
    assert kept_stages(tiny, {}, load(tiny)) == 0
    wide = {"model.vocab": 256_000}  # the head is dearer than a layer
    ways = by_schedule(["gpipe"], load(tiny, wide), wide)
    (first, last) = balanced(tiny, ways["gpipe"], 0)["schedule.layers_per_stage"]
    assert first > last


@pytest.mark.slow
def test_the_largest_micro_batch_that_fits_is_taken(tiny: Path) -> None:
    """Of 1, 2, 4 and 8, against a check of each; the global batch stays."""
    needs = {size: most(tiny, micro_batch=size) for size in (1, 2, 4, 8)}
    for limit in (needs[1], needs[2], needs[4] - 1, needs[8]):
        (fit,) = in_memory(tiny, {"one": {}}, limit).values()
        largest = max(size for size, need in needs.items() if need <= limit)
        assert fit == Fit({"training.micro_batch": largest}, f"micro_batch {largest}")


@pytest.mark.slow
def test_else_the_least_recomputation_that_fits(tiny: Path) -> None:
    """None, the attention core, one or two of three layers, all, and nothing helps."""
    some: list[Any] = ["selective", *({"method": "block", "layers": n} for n in (1, 2)), "full"]
    needs = [most(tiny, recompute=recompute) for recompute in some]
    for limit in (*needs, most(tiny) - 1):
        (fit,) = in_memory(tiny, {"one": {}}, limit).values()
        least = next(r for r, need in zip(some, needs, strict=True) if need <= limit)
        assert fit.way == {"training.micro_batch": 1, "training.recompute": least}
        assert fit.chosen.startswith("micro_batch 1, recompute ")
    (fit,) = in_memory(tiny, {"one": {}}, min(needs) - 1).values()
    assert (fit.way, fit.chosen) == ({}, "")
    assert fit.refused.startswith("it does not fit ")
    assert "micro_batch 1 with full recomputation needs" in fit.refused


@pytest.mark.slow
def test_the_command_says_what_it_made_fair(tiny: Path, traincast) -> None:  # type: ignore[no-untyped-def]
    """Messages, balanced stages, and with what each way fits."""
    line = ["compare", tiny, "--schedules", "gpipe,zb_v", "--set"]
    uneven = [*line, "schedule.layers_per_stage=[2,4]"]
    code, out, _ = traincast(*uneven)
    assert code == 0
    assert "messages: batched (gpipe); a stream per pair of ranks (zb_v)\n" in out
    assert "stages are balanced by simulated runtime: zb_v\n" in out
    assert "balanced by simulated runtime: all" in traincast(*line, "model.layers=8")[1]
    rows = json.loads(traincast(*uneven, "--json")[1])
    splits = [row["pipeline"]["layers_per_stage"] for row in rows]
    assert splits[0] == [2, 4]
    over = {"schedule.name": "gpipe", "schedule.layers_per_stage": [2, 4]}
    entries = check(load(tiny, over | {"training.micro_batch": 2}))["memory"]
    limit = max(entry["device_bytes"] for entry in entries) + 1
    fit = [*uneven, "--memory", f"{limit / 1e9!r}GB"]
    (said,) = [row for row in traincast(*fit)[1].splitlines() if "most that fits" in row][:1]
    chosen = {row["name"]: row["chosen"] for row in json.loads(traincast(*fit, "--json")[1])}
    assert chosen["gpipe"] == "micro_batch 2"
    assert f"{chosen['gpipe']} (gpipe" in said
    code, out, _ = traincast(*line, "model.layers=6", "--memory", "1MB")
    assert code == 2
    assert "gpipe: it does not fit 976.56 KiB; micro_batch 1" in out


@pytest.mark.parametrize("said", ["80", "GB", "-1GB", "0 GB", "80 GB/s", "1.2.3GB"])
def test_a_memory_that_is_none_is_refused(tiny: Path, traincast, said: str) -> None:  # type: ignore[no-untyped-def]
    code, _, err = traincast("compare", tiny, "--schedules", "gpipe", f"--memory={said}")
    assert code == 2
    assert "--memory takes bytes of a GPU, such as 80GB or 80GiB, not" in err


def test_what_memory_chooses_cannot_be_varied_too(tiny: Path, traincast) -> None:  # type: ignore[no-untyped-def]
    line = ("compare", tiny, "--vary", "training.micro_batch=1,2", "--memory", "80GB")
    code, _, err = traincast(*line)
    assert code == 2
    assert "--memory chooses micro_batch and recompute; leave them out of --vary" in err
