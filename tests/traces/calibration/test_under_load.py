"""Constants under load are found in recordings that were made from them, by closed forms.

Mixtures take the clock that :mod:`sim.machine.power` gives them, which the fit does not use.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.machine import cluster, power
from sim.machine.assumed import assuming
from traces.calibration import load_clock, load_rows, under_load
from traces.record import load

Traincast = Callable[..., tuple[int, str, str]]
Found = dict[str, Any]

GPU = cluster.load("dgx_h100", 8).gpu
DERATING, TAU, EXPONENT, MEMORY, ATTENTION, CONTENTION = 0.23, 0.05, 2.5, 0.45, 0.75, 0.62
SPEEDS = (1.0, 0.99, 1.02)
RATED, IDLE = 700.0, 130.0
ALONE = {"tensor": 1.4e-3, "attention": 0.9e-3, "memory": 0.3e-3, "wait": 1e-3}
BURST = 5e-3


def sustain(shape: str, data: str, rank: int, limit: float, derating: float) -> Found:
    """Launches at marks from 1 ms to 20 s, after the mean of a burst."""
    fall = derating if data == "random" else 0.0
    seconds = np.geomspace(1e-3, 20.0, 300)
    once = 1.4e-3 / SPEEDS[rank]
    launches = seconds / (1.0 + fall * seconds / (seconds + TAU)) / once * 100  # no whole numbers
    return {
        "shape": shape, "data": data, "rank": rank, "limit_w": limit,
        "launches": launches.tolist(), "seconds": seconds.tolist(),
        "samples": {"t": [1.0, 15.0], "power_w": [300.0, limit]},
    }  # fmt: skip


def mixture(works: Mapping[str, float], limit: float, derating: float) -> Found:
    """Works that take turns at the clock at which their power is the limit."""
    with assuming("power.exponent", EXPONENT):
        full = power._full(DERATING, EXPONENT, 0.74)
        board = {"rated": RATED, "cap": limit, "idle": IDLE}
        limits = power.limits_of(replace(GPU, costs={**GPU.costs, "power": board}))
    assert limits
    tensor = full * (works.get("tensor", 0.0) + ATTENTION * works.get("attention", 0.0))
    memory = MEMORY * works.get("memory", 0.0)
    busy = works.get("tensor", 0.0) + works.get("attention", 0.0)
    c = float(power.clock(limits, *(np.array([x]) for x in (tensor, memory, busy)))[0])
    pace = 1.0 + busy * (1.0 / c - 1.0)
    drawn = (tensor * max(c, 0.74) ** (EXPONENT - 1.0) + memory) / pace
    begun = 1.0 + derating * BURST / (BURST + TAU)
    rows = []
    for work, share in works.items():
        slow = 1.0 / c if work in ("tensor", "attention") else 1.0
        alone = ALONE[work] * (begun if work in ("tensor", "attention") else 1.0)
        rows.append({"work": work, "alone_s": alone, "burst_s": BURST,
                     "s": ALONE[work] * slow, "total_s": 3.0 * share * slow})  # fmt: skip
    watts = IDLE + drawn * (RATED - IDLE)
    return {"rank": 0, "works": rows, "settled_s": 2.0,
            "samples": {"t": [1.0, 3.0, 4.0], "power_w": [1.0, watts, watts]}}  # fmt: skip


def overlap(what: str) -> Found:
    """Four products beside transfers at 350 GB/s each way."""
    sms, per_byte = (0, 2.0) if what == "peer" else (24, 3.0)
    taken = per_byte * 350e9 / GPU.memory_bandwidth
    slower = 1.0 / ((1.0 - sms / GPU.sms) * (1.0 - CONTENTION * taken))
    sent = 1 << 28 if what == "peer" else (1 << 28) * 7 / 8
    return {"what": what, "rank": 0, "ranks": 8, "bytes": 1 << 28, "products": 4, "others": 10,
            "alone_s": [6e-3, 10 * sent / 350e9], "together_s": [6e-3 * slower, 10 * sent / 350e9],
            "slowdown": [slower, 1.0]}  # fmt: skip


def made(limit: float = RATED, derating: float = DERATING) -> Found:
    """What a sweep writes on a GPU with these constants, whose board may draw ``limit`` watts."""
    return {
        "command": "c", "machine": {"torch": "2"}, "device": "cuda:0",
        "gpu": "NVIDIA H100 80GB HBM3",
        "sustain": [
            sustain(shape, data, rank, limit, derating) for data in ("random", "zeros")
            for shape in load.SHAPES for rank in range(3)
        ],
        "mixture": [mixture(works, limit, derating) for works in load.MIXTURES],
        "overlap": [overlap(what) for what in ("all_gather", "reduce_scatter", "peer")],
    }  # fmt: skip


def fitted(content: Found) -> under_load.UnderLoad:
    return under_load.fit(GPU, load_rows.rows(Path("a.json"), content))


def values(found: under_load.UnderLoad) -> dict[str, float]:
    """Measured constants by the first words of their names."""
    return {one.name.partition(",")[0]: one.measured for one in found.constants}


EXPECTED = {
    "derating": DERATING,
    "derating_seconds": TAU,
    "random data over zeros": DERATING,
    "idle power": IDLE,
    "power limit": RATED,
    "exponent of power over clock": EXPONENT,
    "power of memory-bound kernels": MEMORY,
    "power of attention": ATTENTION,
    "spread": float(np.std(np.log(SPEEDS), ddof=1)),
    "contention": CONTENTION,
}


POWER = {"rated": RATED, "cap": RATED, "idle": IDLE,
         "exponent": EXPONENT, "memory": MEMORY, "attention": ATTENTION}  # fmt: skip


def test_the_constants_of_a_recording_are_found_again() -> None:
    found = fitted(made())
    assert found.missing == []
    assert values(found) == pytest.approx(EXPECTED, rel=5e-3)
    assert found.tables["gemm.bf16"] == pytest.approx(
        {"derating": DERATING, "derating_seconds": TAU}, rel=1e-3
    )
    assert found.tables["power"] == pytest.approx(POWER, rel=5e-3)
    known = {one.name: one for one in found.constants}["contention, beside communication"]
    assert known.topology == 0.7
    assert known.difference == pytest.approx(CONTENTION / 0.7 - 1.0)
    assert known.assumed == (0.3, 0.9)


def test_without_power_the_clock_tells_exponent_and_memory() -> None:
    content = made()
    for row in (*content["sustain"], *content["mixture"]):
        row["samples"] = {}
        row.pop("limit_w", None)
    found = fitted(content)
    for name in ("exponent of power over clock", "power of memory-bound kernels", "derating"):
        assert values(found)[name] == pytest.approx(EXPECTED[name], rel=0.01)
    assert "idle power" not in values(found)
    assert any(why.startswith("power of attention") for why in found.missing)


def test_a_lower_limit_tells_the_derating_at_rated_power() -> None:
    board = {"rated": RATED, "cap": 600.0, "idle": IDLE}
    with assuming("power.exponent", EXPONENT):
        lower = replace(GPU, costs={**GPU.costs, "power": board})
        derating = 1.0 / power.held(lower, DERATING) - 1.0
    found = fitted(made(600.0, derating))
    assert values(found)["derating"] == pytest.approx(derating, rel=5e-3)
    assert found.tables["gemm.bf16"]["derating"] == pytest.approx(DERATING, rel=0.01)
    known, power_left = GPU.costs["gemm"]["bf16"]["derating"], (600 - 120) / (700 - 120)
    assert found.constants[0].topology == pytest.approx((1 + known) / power_left ** (1 / 3) - 1)
    assert found.tables["power"]["cap"] == 600.0


def test_a_topology_without_power_gets_a_table() -> None:
    costs = {name: table for name, table in GPU.costs.items() if name != "power"}
    found = under_load.fit(replace(GPU, costs=costs), load_rows.rows(Path("a.json"), made()))
    assert values(found) == pytest.approx(EXPECTED, rel=5e-3)
    assert found.tables["power"] == pytest.approx(POWER, rel=5e-3)
    assert {one.topology for one in found.constants if one.name.endswith(", W")} == {None}


def test_a_clock_that_does_not_fall_has_no_seconds() -> None:
    rows = [sustain("square", "random", 0, RATED, 0.0)]
    found = fitted({"sustain": rows})
    assert values(found)["derating"] == pytest.approx(0.0, abs=1e-3)
    assert "derating_seconds: the clock does not fall" in found.missing
    assert "derating_seconds" not in found.tables["gemm.bf16"]


def test_noise_is_in_the_standard_errors() -> None:
    """Over many draws a fitted value is off by about its standard error."""
    off = []
    for seed in range(20):
        draw = np.random.default_rng(seed)
        row = sustain("square", "random", 0, RATED, DERATING)
        steps = np.diff(row["launches"]) * np.exp(draw.normal(0.0, 0.003, 299))
        row["launches"] = (row["launches"][0] + np.cumsum([0.0, *steps])).tolist()
        runs = load_rows.rows(Path("a.json"), {"sustain": [row]}).sustained
        value, error = (pair[0] for pair in load_clock.derating(runs))
        off.append((value - DERATING) / error)
    assert 0.5 < np.sqrt(np.mean(np.square(off))) < 2.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "load.json"


@pytest.mark.slow
def test_the_command_says_how_far_the_topology_is_off(traincast: Traincast, path: Path) -> None:
    path.write_text(json.dumps(made()))
    code, out, said = traincast("calibrate", "h100", "--recorded", path)
    assert (code, said) == (0, "")
    assert 'cap = "700 W"' in out
    assert 'derating_seconds = "50 ms"' in out
    (row,) = (line for line in out.splitlines() if line.startswith("# contention"))
    assert row.startswith("# contention, beside communication")
    assert row.split()[4] == "0.62"
    assert row.endswith("0.7  -11.4 %  0.3 to 0.9")
    code, out, _ = traincast("calibrate", "dgx_h100", "--recorded", path, "--json")
    rows = {row["name"]: row for row in json.loads(out)["under_load"]}
    assert rows["derating"]["measured"] == pytest.approx(DERATING, rel=1e-3)
    known = GPU.costs["gemm"]["bf16"]["derating"]
    assert rows["derating"]["difference"] == pytest.approx(DERATING / known - 1.0, rel=0.01)


@pytest.mark.slow
def test_printed_tables_make_a_topology_that_is_no_further_off(
    traincast: Traincast, path: Path
) -> None:
    path.write_text(json.dumps(made()))
    _, out, _ = traincast("calibrate", "h100", "--recorded", path)
    mine = path.with_name("mine.toml")
    mine.write_text(f'base = "dgx_h100"\n{out}')
    code, out, said = traincast("calibrate", mine, "--recorded", path, "--json")
    assert (code, said) == (0, "")
    for row in json.loads(out)["under_load"]:
        assert abs(row["difference"]) < 1e-3, row["name"]
        assert row["assumed"] is None


def test_what_no_topology_can_have_is_one_sentence(traincast: Traincast, path: Path) -> None:
    """A GPU that is 1e150 times as slow as the others of the fleet; a product that never ends."""
    content = {**made(), "mixture": [], "overlap": []}
    slow = content["sustain"][1]
    slow["seconds"] = [1e150 * s for s in slow["seconds"]]
    path.write_text(json.dumps(content))
    code, out, said = traincast("calibrate", "h100", "--recorded", path)
    assert (code, out) == (2, "")
    assert f"{path} is damaged, or of another GPU: fitted to it, topology 'dgx_h100': gpu." in said
    assert "= 141 must be at most 1" in said


def test_a_command_may_have_quotes_and_halves_of_characters(
    traincast: Traincast, path: Path
) -> None:
    content = {**made(), "sustain": [], "mixture": [], "command": 'record "\ud83d\\" --out'}
    content["overlap"][0]["slowdown"] = [0.7, 1.0]  # faster beside a transfer, by chance
    path.write_text(json.dumps(content))
    code, out, said = traincast("calibrate", "h100", "--recorded", path)
    assert (code, said) == (0, "")
    assert tomllib.loads(out)["gpu"]["communication"]["source"].count('record "?\\" --out') == 1


def test_sections_of_record_all_are_read(traincast: Traincast, path: Path) -> None:
    content = made()
    whole = {key: content.pop(key) for key in ("command", "machine")}
    path.write_text(json.dumps({**whole, "sections": {"load": content}}))
    code, out, said = traincast("calibrate", "h100", "--recorded", path)
    assert (code, said) == (0, "")
    assert "# contention, beside communication" in out


GEMM = {"m": 64, "n": 64, "k": 64, "s": 1e-3, "dtype": "bfloat16"}


def without(key: str) -> Found:
    return {name: value for name, value in made().items() if name != key}


def damaged(part: str, **change: Any) -> Found:
    content = made()
    content[part][1] = {**content[part][1], **change}
    return content


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (damaged("sustain", launches=[1, 1, 2]), "row 2 of sustain (launches and seconds have to"),
        (damaged("sustain", seconds=None), "is damaged: row 2 of sustain ("),
        (damaged("mixture", works=[{"work": "wait"}]), "row 2 of mixture has no alone_s"),
        (damaged("mixture", settled_s=float("nan")), "row 2 of mixture (nan is not above 0)"),
        (damaged("overlap", slowdown=["a", 1.0]), "row 2 of overlap ('a' is no number)"),
        (damaged("overlap", others=0), "row 2 of overlap (0 is not above 0)"),
        ({**made(), "gemm": [{"m": 1}]}, "is damaged: row 1 of gemm has no n"),
        ({**made(), "gemm": [7]}, "is damaged: row 1 of gemm has no m"),
        ({**made(), "gemm": [{**GEMM, "dtype": {}}]}, "row 1 of gemm has dtype = {}; it must be b"),
        ({**made(), "gemm": [{**GEMM, "s": 1e300}]}, "row 1 of gemm has s = 1e+300; it must be a"),
        ({**made(), "launch": [{"s": float("inf")}]}, "row 1 of launch has s = Infinity; it must"),
        ({**made(), "launch": [{"s": 1e-6}]}, "is damaged: row 1 of launch has no what"),
        ({**made(), "memory": [{"bytes": 8, "s": 1e-6}]}, "row 1 of memory has no way"),
        ({**made(), "elementwise": [{"kind": 7, "bytes": 8, "s": 1e-6}]}, "has kind = 7; it must"),
        (damaged("mixture", rank=float("inf")), "row 2 of mixture (cannot convert float infinity"),
        (without("gpu"), "has no measured kernels: it lacks 'gpu'; give the result.json"),
        (without("machine"), "has no measured kernels: it lacks 'machine'; give"),
        ({**made(), "gpu": "NVIDIA A100-SXM4-80GB"},
         "was recorded on NVIDIA A100-SXM4-80GB, and the topology's GPU is H100-SXM5-80GB"),
        ({"gpu": "H100"}, "has no measured kernels"),
        ([1], "has no measured kernels"),
        ({**made(), "device": "cpu"}, "was recorded on a CPU"),
    ],
)  # fmt: skip
def test_what_is_no_such_recording_is_one_sentence(
    traincast: Traincast, path: Path, content: object, sentence: str
) -> None:
    path.write_text(json.dumps(content))
    code, out, said = traincast("calibrate", "h100", "--recorded", path)
    assert (code, out) == (2, "")
    assert sentence in said
    assert said.startswith(f"error: {path} ")
    assert said.count("\n") == 1
