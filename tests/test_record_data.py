"""The recordings in ``traces/data``: whole, small, in the order of their plans."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import schedules
from traces import replays
from traces.reading import read
from traces.recording import Selection

DATA = Path(__file__).parents[1] / "traces/data"
FILES = sorted(DATA.glob("*.json.gz"))


def test_there_is_one_of_every_kind() -> None:
    plans = {path.name.split("_P4_M8.json")[0].removeprefix("virtual_") for path in FILES}
    assert plans == {
        "gpipe", "one_f_one_b", "interleaved_1f1b", "interleaved_zero_bubble", "zb_v", "dualpipe_v",
        "v_half", "gpipe_class", "one_f_one_b_class", "gpipe_class_P8_M16.json.gz",
        "interleaved_zero_bubble_class_P2_M8.json.gz",
        "interleaved_zero_bubble_class_P4_M8_1MiB.json.gz",
    }  # fmt: skip
    said = (DATA / "README.md").read_text()
    assert all(f"`{path.name}`" in said for path in FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_recording_is_what_it_says(path: Path) -> None:
    assert path.stat().st_size < 200e3
    with gzip.open(path) as content:
        facts = json.load(content)["otherData"]
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
