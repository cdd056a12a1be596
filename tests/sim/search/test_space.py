"""The space of layouts: nothing legal is missed, and nothing is tried twice."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from schedules.input_error import InputError
from sim.recipe import recipe_file
from sim.search.space import INSIDE, SPLIT, space
from tests.recipes import SEARCHED as MODEL

MIXTURE = MODEL.replace("vocab", "ffn = 128\nexperts = 4\ntopk = 2\nexpert_ffn = 64\nvocab")


def written(folder: Path, text: str = MODEL) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [MODEL, MIXTURE], ids=["dense", "mixture"])
def test_every_legal_split_is_in_the_space(text: str, tmp_path: Path) -> None:
    """Against all combinations of small degrees, each of which the recipe's checks judge."""
    path = written(tmp_path, text)
    found = space(path, 4)
    keys = [f"parallelism.{axis}" for axis in ("tp", "cp", "pp", "dp", "ep", "etp")]
    mine = {tuple(group[key] for key in keys) for group in found.groups() if legal(found, group)}
    every = set()
    for degrees in product((1, 2, 3, 4), repeat=6):
        tp, cp, pp, dp, _, etp = degrees
        split = {**dict(zip(keys, degrees, strict=True)), "parallelism.sp": tp > 1}
        if tp * cp * pp * dp != 4 or etp not in (1, tp):
            continue
        try:
            recipe_file.load(path, split)
        except InputError:
            continue
        every.add(degrees)
    assert mine == every


def legal(found, group) -> bool:
    return any(found.legal(layout) for layout in found.members(group))


def test_layouts_keep_the_global_batch_and_differ(tmp_path: Path) -> None:
    found = space(written(tmp_path), 4)
    groups = list(found.groups())
    layouts = [layout for group in groups for layout in found.members(group)]
    assert len({repr(layout) for layout in layouts}) == len(layouts)
    assert {tuple(layout) for layout in layouts} == {(*SPLIT, *INSIDE)}
    recipes = [r for layout in layouts[:: len(layouts) // 60] if (r := found.legal(layout))]
    assert len(recipes) > 50
    assert {r.training.global_batch for r in recipes} == {8}
    assert len({r.training.micro_batch for r in recipes}) > 1


def test_given_values_are_the_only_ones(tmp_path: Path) -> None:
    given = {"parallelism.tp": [2], "simulation.clock": ["boost", "power"]}
    found = space(written(tmp_path), 4, given)
    layouts = [layout for group in found.groups() for layout in found.members(group)]
    assert {layout["parallelism.tp"] for layout in layouts} == {2}
    assert {layout["simulation.clock"] for layout in layouts} == {"boost", "power"}


def test_a_recipe_that_is_no_job_as_it_stands_has_a_space(tmp_path: Path) -> None:
    path = written(tmp_path, MODEL + "[parallelism]\ntp = 3\n")
    assert any(space(path, 8).groups())


def test_unknown_keys_and_keys_said_twice_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(InputError, match=r"parallelism\.tq"):
        space(path, 4, {"parallelism.tq": [1]})
    with pytest.raises(InputError, match="both set and varied"):
        space(path, 4, {"parallelism.tp": [1]}, {"parallelism.tp": 2})
