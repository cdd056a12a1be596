"""What is assumed of recorded pipelines, what is refused, and how often intervals are right."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import validation
from traces.recorded import run as recorded_run
from validation.processes.compared import OURS
from validation.processes.pipelines import errors as recorded
from validation.processes.pipelines.costs import Costs, Quantiles, Size
from validation.processes.pipelines.halves import completed, input_share
from validation.processes.pipelines.predict import BETWEEN, bare, interval, predict
from validation.processes.pipelines.workload import load

CASE = "cases/traces/7_real_zb_v_P2_M8.json.gz"
MODEL = {"d": 8, "seq": 6, "mb": 1, "heads": 1}


def changed(source: Path, out: Path, **settings: object) -> Path:
    content = json.loads(gzip.decompress(source.read_bytes()))
    content["otherData"]["cfg"] |= settings
    out.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
    return out


def test_halves_of_a_backward_have_its_flops() -> None:
    """d = 8, s = 6: 24 d^2 = 1536 each for I and W, 8 s d = 384 for attention, I's alone."""
    assert input_share(MODEL) == (1536 + 384) / (2 * 1536 + 384)
    whole = Costs("real", {"F": Quantiles((1.0,)), "B": Quantiles((2.0, 4.0))}, model=MODEL)
    made, said = completed(whole)
    both = np.add(made.spreads["I"].bins, made.spreads["W"].bins)
    assert both.tolist() == pytest.approx([2.0, 4.0])
    assert "I and W were not measured" in said
    split = Costs("real", {k: Quantiles((s,)) for k, s in zip("FIW", (1.0, 5.0, 3.0), strict=True)})
    made, said = completed(replace(split, model=MODEL))
    assert made.spreads["B"].mean == 8.0
    assert completed(replace(whole, model={}))[1] == ""  # timed stages say their times


@pytest.mark.slow
def test_a_split_backward_is_predicted_from_a_whole_one(shared: Path) -> None:
    """It ended in a KeyError; the rest of its folder is predicted with it."""
    (of,) = recorded.validate([shared.parent / CASE], draws=2).compared
    assert list(of.violations) == []
    assert any("I and W were not measured" in note for note in of.notes)


@pytest.mark.slow
def test_one_that_cannot_be_predicted_leaves_the_others(tmp_path: Path) -> None:
    one = OURS / "virtual_gpipe_class_P4_M8.json.gz"
    shutil.copy(one, tmp_path / "a.json.gz")
    changed(one, tmp_path / "b.json.gz", overlap_factor=2.0)
    changed(one, tmp_path / "c.json.gz", schedule="Unheard", plan="unheard")
    found = recorded.validate([tmp_path], draws=1)
    assert [of.run.name for of in found.compared] == ["a"]
    setting, order = found.skipped
    assert "the setting overlap_factor is not known; did you mean overlap?" in setting
    assert "was run by 'Unheard' and holds no orders" in order
    with pytest.raises(ValueError, match="overlap_factor is not known"):
        recorded.validate([tmp_path / "b.json.gz"], draws=1)


@pytest.mark.parametrize(
    ("size", "sizes", "said"),
    [
        (4096.0, (), ""),
        (4 * 2.0**20, (), "4.00 MiB are larger than those of up to 4.00 KiB"),
        (4 * 2.0**20, ((0.0, 0.0, 0.0), (2.0**20, 1e-3, 1e-3)), "extrapolated linearly"),
        (2.0**20, ((0.0, 0.0, 0.0), (2.0**20, 1e-3, 1e-3)), ""),
    ],
)
def test_messages_beyond_those_measured_are_said(
    size: float, sizes: tuple[tuple[float, float, float], ...], said: str
) -> None:
    costs = Costs("made", {}, tuple(Size(*row) for row in sizes), bytes=4096.0)
    found = recorded.beyond(size, costs)
    assert [said in sentence for sentence in found] == [True] * bool(said)


@pytest.mark.slow
def test_an_interval_is_that_of_sittings_and_of_steps() -> None:
    """With costs that never vary, ln(beyond the stages) is normal: 80 % within 1.2816 sigma."""
    run = recorded_run.read(OURS / "virtual_gpipe_class_P4_M8.json.gz")
    what = load(run)
    names = ("head", "resume", "onward", "next", "enter", "loss", "finish", "over", "isend",
             "irecv", "arrival")  # fmt: skip
    costs = Costs("made", {name: Quantiles((2e-4,)) for name in names}, sources={"a": "1"})
    low, high = interval(what, costs, predict(what, costs, draws=100))
    alone = bare(what)
    width = np.log((high - alone) / (low - alone))
    assert width == pytest.approx(2 * 1.2816 * BETWEEN * np.sqrt(2), rel=0.15)


@pytest.mark.parametrize("name", ["recorded.md", "recorded_ours.md"])
def test_intervals_of_80_percent_hold_65_to_95_percent_of_steps(name: str) -> None:
    """As the tables say that `traincast validate recorded` made last."""
    lines = (Path(validation.__file__).parent / name).read_text().splitlines()
    head = next(line for line in lines if line.startswith("| run | steps |"))
    column = [cell.strip() for cell in head.split("|")].index("steps in")
    rows = [line.split("|") for line in lines[lines.index(head) + 2 :]]
    runs = rows[: next(k for k, row in enumerate(rows) if len(row) < 3)]
    inside = [float(row[column].strip().removesuffix("%")) for row in runs]
    assert 65 <= np.average(inside, weights=[int(row[2]) for row in runs]) <= 95
