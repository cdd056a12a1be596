"""The largest micro-batch and context: what is larger does not fit, whatever the layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from schedules.input_error import InputError
from sim.recipe import recipe_file
from sim.runs.check import check
from sim.search.largest import largest

MODEL = """
[model]
layers = 16
hidden = 4096
heads = 32
vocab = 32000
sequence = 8192
[cluster]
topology = "dgx_h100"
gpus = 1
[training]
global_batch = 16
"""
PLAIN = {"training.recompute": "selective"}


def written(folder: Path) -> Path:
    path = folder / "recipe.toml"
    path.write_text(MODEL)
    return path


def fits(path: Path, **more: object) -> bool:
    keys = {"micro_batch": "training.micro_batch", "context": "model.sequence"}
    return bool(
        check(recipe_file.load(path, PLAIN | {keys[k]: v for k, v in more.items()}))["fits"]
    )


@pytest.mark.slow
def test_the_next_larger_value_does_not_fit(tmp_path: Path) -> None:
    """On one GPU there is one split, which check judges by itself."""
    path = written(tmp_path)
    found = largest(path, "micro_batch", fix=PLAIN)
    every = [size for size in (1, 2, 4, 8, 16) if fits(path, micro_batch=size)]
    assert found.value == every[-1] < 16
    assert found.bytes <= found.capacity
    context = largest(path, "context", fix={**PLAIN, "training.micro_batch": 1})
    assert context.value > 8192
    assert fits(path, context=context.value)
    assert not fits(path, context=context.value + context.value // 8)


@pytest.mark.parametrize(
    ("what", "fix", "said"),
    [
        ("tp", {}, "no largest 'tp'; there are micro_batch, context"),
        ("context", {"model.sequence": 1024}, "is what --largest finds"),
        ("micro_batch", {"training.recompute": "none", "parallelism.dp": 3}, "no layout fits"),
    ],
)
def test_what_has_no_largest_is_refused(what: str, fix: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        largest(written(tmp_path), what, fix=fix)
