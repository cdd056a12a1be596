"""The recordings in ``traces/data``: whole, small, in their plans' order, as the table says."""

from __future__ import annotations

import gzip
import json
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

import schedules
from traces import cpu_steps
from traces.reading import read
from traces.recording import Selection
from traces.replay import replays

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[3] / "traces/data"
SAID = (DATA / "README.md").read_text()
ALL = sorted(DATA.glob("*.json.gz"))
PARALLEL = [path for path in ALL if cpu_steps.recognises(path)]
FILES = [path for path in ALL if path not in PARALLEL]


def named(path: Path) -> str:
    return path.name.removesuffix(".json.gz")


def content(path: Path) -> dict[str, Any]:
    with gzip.open(path) as text:
        found: dict[str, Any] = json.load(text)
    return found


def cells(path: Path) -> list[str]:
    """A file's row of the README; of a pipeline without its name in torch."""
    rows = [line for line in SAID.splitlines() if line.startswith(f"| `{path.name}` |")]
    assert len(rows) == 1, path.name
    found = [cell.strip() for cell in rows[0].strip("|").split("|")][1:]
    return found if path in PARALLEL else found[1:]


def test_there_is_one_of_every_kind() -> None:
    assert {named(path).replace("_P4_M8", "") for path in FILES} == {
        *(f"virtual_{name}" for name in (
            "gpipe", "one_f_one_b", "interleaved_1f1b", "interleaved_zero_bubble", "zb_v",
            "dualpipe_v", "v_half", "gpipe_class", "one_f_one_b_class", "gpipe_class_P8_M16",
            "interleaved_zero_bubble_class_P2_M8", "interleaved_zero_bubble_class_1MiB",
        )),
        "plain_one_f_one_b_class", "plain_zb_v_class",
        "real_one_f_one_b_class_P2_M8", "real_interleaved_1f1b_class_P2_M8",
    }  # fmt: skip
    modes = Counter(named(path).split("_")[0] for path in PARALLEL)
    assert modes == {"ddp": 4, "fsdp2": 4, "tp": 4, "zero1": 1, "ring": 1, "moe": 1}


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_recording_is_what_it_says(path: Path) -> None:
    assert path.stat().st_size < 200e3
    facts = content(path)["otherData"]
    assert len(facts["step_ms_all"]) >= 10
    assert facts["command"].startswith("traincast record pipeline ")
    assert {"processor", "cores", "load", "python", "torch"} <= facts["machine"].keys()
    assert facts["cfg"]["seed"] == 0
    assert facts["steps_as_planned"] == len(facts["step_ms_all"])
    recording = read([path], Selection(step=1))
    timeline = recording.timeline
    plan = schedules.load(facts["cfg"]["plan"])(facts["cfg"]["world"], facts["cfg"]["M"])
    for rank, steps in enumerate(schedules.flat(plan)):
        names = [timeline.graph.op(i).name for i in timeline.on(rank, "compute")]
        assert names == [str(step) for step in steps]
    recorded, replayed = replays.replay(recording, "anchored").steps()
    last = recorded[-1]
    assert last * 1e3 == pytest.approx(facts["step_ms_all"][1], rel=0.01)
    assert replayed[-1] == pytest.approx(last, rel=1e-6)


@pytest.mark.parametrize("path", PARALLEL, ids=named)
def test_a_parallel_recording_is_what_it_says(path: Path) -> None:
    assert path.stat().st_size < 50e3
    run = cpu_steps.read(path)
    assert named(path) == f"{run.mode}_{run.config['blocks']}x{run.config['d']}"
    assert run.facts["command"].startswith("traincast record parallel ")
    assert {"processor", "cores", "load", "python", "torch"} <= run.facts["machine"].keys()
    assert len(run.step_s) == len(run.profiled_s) == 12
    for one in run.ranks:
        assert one.math_s + one.host_s + one.wait_s == pytest.approx(one.seconds)
        assert one.exposed_s <= min(one.wait_s, one.moving_s) + 1e-12


@pytest.mark.parametrize("path", [p for p in ALL if named(p).startswith("virtual")], ids=named)
def test_the_table_of_pipelines_says_what_files_hold(path: Path) -> None:
    facts = content(path)["otherData"]
    noise, load = facts["noise"], facts["machine"]
    assert cells(path) == [
        *steps(facts["step_ms_all"]),
        f"{noise['over_ms_p50']:.2f}, {noise['over_ms_p99']:.2f}",
        f"{load['load']}, {load['load_after']}",
    ]


@pytest.mark.parametrize("path", PARALLEL, ids=named)
def test_the_table_of_parallel_steps_says_what_files_hold(path: Path) -> None:
    run = cpu_steps.read(path)
    exposed = defaultdict[int, list[float]](list)
    for one in run.ranks:
        exposed[one.step].append(one.exposed_s * 1e3)
    load = run.facts["machine"]
    assert cells(path) == [
        *steps([seconds * 1e3 for seconds in run.step_s]),
        f"{statistics.median(run.profiled_s) * 1e3:.1f}",
        f"{statistics.median(map(statistics.mean, exposed.values())):.1f}",
        f"{load['load']}, {load['load_after']}",
    ]


def steps(ms: list[float]) -> list[str]:
    """Median, extremes, and the deviation of a sample over the mean."""
    deviation = 100 * statistics.stdev(ms) / statistics.mean(ms)
    middle = f"{statistics.median(ms):.1f}"
    return [middle, f"{min(ms):.1f} to {max(ms):.1f}", f"{deviation:.2f} %"]
