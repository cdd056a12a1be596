"""Processes that record: what is refused before any of them starts."""

import math
import subprocess

import pytest

from schedules.input_error import InputError
from traces.record import workers


@pytest.mark.parametrize(
    ("ranks", "timeout", "said"),
    [
        (257, 10.0, "257 processes are too many for one machine; give at most 256"),
        (1, 0.0, "a timeout of 0.0 s is no time to wait; give a positive number"),
        (1, -1.0, "a timeout of -1.0 s is no time"),
        (1, math.inf, "a timeout of inf s is no time"),
        (1, math.nan, "a timeout of nan s is no time"),
    ],
)
def test_nothing_starts_for_too_many_ranks_or_a_timeout_without_an_end(
    monkeypatch, ranks: int, timeout: float, said: str
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", started)
    with pytest.raises(InputError, match=said):
        workers.run([], ranks, timeout)
