"""Clock, power and contention of the GPU that is not there: recorded, and found by calibration.

The double in ``tests/traces/record/cuda_double`` knows its constants, and the recorder and the fits
do not. That a real GPU behaves like the double is not shown here.
"""

from __future__ import annotations

import importlib.util
import json
from math import log, sqrt
from pathlib import Path
from typing import Any

import pytest

from traces.calibration import from_recorder
from traces.record import load, sweep

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

pytestmark = pytest.mark.slow  # workers load torch
DOUBLE = Path(__file__).parent / "cuda_double"
TRUE = {
    "derating": 0.21, "tau": 0.25, "exponent": 2.6, "memory": 0.5, "attention": 0.8,
    "contention": 0.7, "speeds": [1.0, 0.98], "noise": 0.002, "power_noise": 0.01,
    "cap": 700, "idle": 110, "seed": 3, "longer": 5,
}  # fmt: skip
Found = dict[str, Any]


def recorded(gpus: int, parts: list[str], seconds: float, folder: Path) -> Found:
    """What a sweep of the double finds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(DOUBLE))
        patch.setenv("DOUBLE_LOG", str(folder / "log"))
        patch.setenv("DOUBLE_GPUS", str(gpus))
        patch.setenv("DOUBLE_LOAD", json.dumps(TRUE))
        return sweep.record(parts, gpus, seconds, 1200.0)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return recorded(1, ["sustain", "mixture"], 104.0, tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return recorded(2, ["sustain", "overlap"], 40.0, tmp_path_factory.mktemp("two"))


def test_products_run_without_a_gap_and_sink_to_their_clock(one: Found) -> None:
    assert "skipped" not in one
    rows = {row["case"]: row for row in one["sustain"]}
    assert [*rows] == [case.name for case in load.cases(["sustain"], 1)]
    for name, row in rows.items():
        m, n, k = load.SHAPES[row["shape"]]
        boost = 2 * m * n * k / 400e12 * TRUE["longer"]
        took = row["seconds"][-1]
        slower = 1.0 if "zeros" in name else 1.0 + TRUE["derating"] * took / (took + TRUE["tau"])
        assert took / row["launches"][-1] == pytest.approx(boost * slower, rel=1e-3)
        assert row["limit_w"] == 700
        steps = [b - a for a, b in zip(row["samples"]["t"], row["samples"]["t"][1:], strict=False)]
        assert 0.1 <= min(steps) <= max(steps) < 0.35
        assert row["samples"]["power_w"][-1] == pytest.approx(
            700 if "random" in name else 110 + 590 * 0.6 * 1.21**2.6, rel=0.05
        )
        assert row["samples"]["sm_hz"][-1] == pytest.approx(1.98e9 / slower, rel=5e-3)


def test_kinds_of_work_take_turns(one: Found) -> None:
    for row in one["mixture"]:
        whole = sum(work["total_s"] for work in row["works"])
        for work in row["works"]:
            assert work["total_s"] / whole == pytest.approx(work["share"], abs=0.06)
            if work["work"] in ("wait", "memory"):
                assert work["s"] == pytest.approx(work["alone_s"], rel=0.01)


def test_gpus_are_measured_at_once_and_beside_collectives(two: Found) -> None:
    assert "skipped" not in two
    assert [row["rank"] for row in two["sustain"]] == [0, 1] * 4
    fast, slow = (row["launches"][-1] / row["seconds"][-1] for row in two["sustain"][:2])
    assert slow / fast == pytest.approx(0.98, rel=2e-3)
    rows = {(row["what"], row["rank"]): row for row in two["overlap"]}
    assert len(rows) == 8
    for (what, _), row in rows.items():
        sms = 0 if what == "peer" else 24
        held = (2.0 if what == "peer" else 3.0) * 400e9 / 3352e9
        keeps = (1 - sms / 132) * (1 - TRUE["contention"] * held)
        assert 1 / row["slowdown"][0] == pytest.approx(keeps, rel=0.02)
        assert row["slowdown"][1] == pytest.approx(1.0, rel=1e-3)
        sent = row["bytes"] * {"all_reduce": 1.0, "peer": 1.0}.get(what, 0.5)
        assert row["alone_s"][1] == pytest.approx(row["others"] * sent / 400e9, rel=1e-3)


def calibrated(found: Found, path: Path) -> dict[str, float]:
    """What calibration makes of a recording, by the first word of each constant's name."""
    facts = {"command": "c", "machine": {"torch": "2"}}
    path.write_text(json.dumps({**facts, **found}))
    fitted = from_recorder.calibrate("dgx_h100", path).load
    assert fitted
    return {one.name: one.measured for one in fitted.constants}


def test_calibration_finds_the_clock_and_the_power(one: Found, tmp_path: Path) -> None:
    found = calibrated(one, tmp_path / "one.json")
    bounds = {
        "derating": ("derating", 0.008),
        "derating_seconds, s": ("tau", 0.025),
        "random data over zeros, steady": ("derating", 0.01),
        "idle power, W": ("idle", 2.0),
        "power limit, W": ("cap", 0.0),
        "exponent of power over clock": ("exponent", 0.3),
        "power of memory-bound kernels, of rated less idle": ("memory", 0.05),
        "power of attention, of products'": ("attention", 0.06),
    }
    assert {*found} == {*bounds}
    for name, (key, off) in bounds.items():
        assert found[name] == pytest.approx(TRUE[key], abs=off), name


def test_calibration_finds_spread_and_contention(two: Found, tmp_path: Path) -> None:
    found = calibrated(two, tmp_path / "two.json")
    sigma = log(1 / 0.98) / sqrt(2)
    assert found["spread, sigma of the GPUs' speeds"] == pytest.approx(sigma, rel=0.05)
    assert found["contention, beside communication"] == pytest.approx(0.7, abs=0.05)
