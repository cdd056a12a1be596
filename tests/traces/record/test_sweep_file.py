"""A sweep under load that is interrupted is continued by the same command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schedules.input_error import InputError
from traces.record import load, machine, sweep, workers

Traincast = Callable[..., tuple[int, str, str]]


class Workers:
    """Stands in for processes that measure: it notes the tasks, and gives up after some."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.last = 10**9
        self.gpu = "A"

    def run(self, tasks: Any, ranks: int, timeout: float, each: Callable[[int, Any], None]) -> None:
        for at, task in enumerate(tasks):
            if at == self.last:
                raise InputError("recording was not done after 1 s; give it more time")
            self.asked.append(task["name"])
            facts = {"device": "cuda:0", "gpu": self.gpu}
            each(at, [{**facts, "row": {"case": task["name"], "rank": r}} for r in range(ranks)])


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Workers:
    one = Workers()
    monkeypatch.setattr(workers, "run", one.run)
    monkeypatch.setattr(machine, "require_torch", lambda: None)
    return one


def test_an_interrupted_sweep_goes_on_where_it_stopped(
    processes: Workers, traincast: Traincast, tmp_path: Path
) -> None:
    command = ("record", "sweep", "mixture", "sustain", "--ranks", 2, "--out")
    whole, cut = tmp_path / "whole.json", tmp_path / "cut.json"
    assert traincast(*command, whole)[0] == 0
    expected = json.loads(whole.read_text())
    names = [case.name for case in load.cases(load.PARTS[:2], 2)]
    assert processes.asked == names
    assert [row["rank"] for row in expected["sustain"]] == [0, 1] * 4

    processes.asked, processes.last = [], 3
    code, out, said = traincast(*command, cut)
    assert (code, out) == (2, "")
    assert said == "error: recording was not done after 1 s; give it more time\n"
    assert len(json.loads(cut.read_text())["unfinished"]) == 3
    processes.last = 10**9
    assert traincast(*command, cut)[0] == 0
    assert processes.asked == names
    found = json.loads(cut.read_text())
    for key in ("sustain", "mixture", "gpu"):
        assert found[key] == expected[key]
    assert found.keys() == expected.keys()


def test_what_would_be_lost_or_mixed_up_is_refused(
    processes: Workers, traincast: Traincast, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    processes.last = 2
    traincast("record", "sweep", "sustain", "--out", out)
    before = json.loads(out.read_text())["sustain"]
    code, _, said = traincast("record", "sweep", "mixture", "--out", out)
    assert code == 2
    assert "had measured when it was interrupted; run that again, name another file" in said
    processes.gpu = "B"
    code, _, said = traincast("record", "sweep", "sustain", "--out", out)
    assert (code, said) == (2, "error: the sweep was begun on A, and this is B\n")
    assert json.loads(out.read_text())["sustain"] == before


def test_a_sweep_is_as_long_as_asked_for() -> None:
    usual = load.cases(load.PARTS, 8)
    assert load.needed(usual) < 240
    short = load.cases(load.PARTS, 8, 120.0)
    assert load.needed(short) == pytest.approx(120.0)
    assert [one.name for one in short] == [one.name for one in usual]
    with pytest.raises(InputError, match="--seconds nan"):
        sweep.record(["sustain"], seconds=float("nan"))
