"""The recorders' plan: which rows are measured, which steps count, what one that fails leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from traces.record.plan import Row, guarded, measured, steps
from traces.record.workers import Here

HERE = Here(0, 1, "cpu", Path())


def test_when_time_is_up_only_rows_that_belong_to_the_last_are_measured() -> None:
    ran: list[str] = []

    def row(name: str, joined: bool = False) -> Row:
        return Row({"name": name}, lambda: ran.append(name), 7, 7, 1, joined=joined)

    some = [row("forward", joined=True), row("backward", joined=True), row("next"), row("later")]
    found = [*measured(HERE, some, until=0.0)]
    assert [(one["name"], one["runs"]) for one in found] == [("forward", 7), ("backward", 7)]
    assert set(ran) == {"forward", "backward"}
    assert len([*measured(HERE, some, until=float("inf"))]) == 4


def test_the_seconds_of_a_row_are_those_of_one_of_its_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    took = {"s": 6.0, "s_p10": 3.0, "s_p90": 9.0, "runs": 5}
    monkeypatch.setattr("traces.record.plan.seconds", lambda *_: took)
    (row,) = measured(HERE, [Row({"bytes": 8}, list, shares=3)], until=float("inf"))
    assert row == {"bytes": 8, "s": 2.0, "s_p10": 1.0, "s_p90": 3.0, "runs": 5}


def test_steps_of_the_warm_up_do_not_count() -> None:
    said: list[str] = []

    def one() -> int:
        said.append("step")
        return len(said)

    found = steps({"warm": 2, "steps": 3}, HERE, one, begin=lambda: said.append("begin"))
    assert said == ["step", "step", "begin", "step", "step", "step"]
    assert found == [4, 5, 6]


def test_a_part_that_fails_says_why_in_a_line_and_leaves_the_others() -> None:
    skipped: dict[str, str] = {}
    for name, text in (("a", "no memory\nleft"), ("b", "")):
        with guarded(skipped, name):
            if text:
                raise RuntimeError(text)
    assert skipped == {"a": "RuntimeError: no memory"}
    with pytest.raises(KeyboardInterrupt), guarded(skipped, "c"):
        raise KeyboardInterrupt
