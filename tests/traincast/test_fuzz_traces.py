"""Damaged traces of every format end in figures or in one sentence: see :mod:`fuzz_traces`.

TRAINCAST_FUZZ=1000 damages so many in the slow test.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.traincast import damaged_traces as fuzz

pytestmark = pytest.mark.slow

FAST, SLOW = 63, 40


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Good files of every format."""
    return fuzz.good(tmp_path_factory.mktemp("good"))


def wrong(numbers: range, whole: dict[str, Path], folder: Path) -> list[tuple[str, str]]:
    return [found for n in numbers if (found := fuzz.attempt(n, whole, folder))[1]]


@pytest.mark.parametrize("command", ["analyze", "replay"])
def test_good_files_are_read(whole: dict[str, Path], command: str) -> None:
    for path in whole.values():
        code, out, error = fuzz.command(command, path, "--json")
        assert (code, fuzz.complaint(code, out, error)) == (0, "")


@pytest.mark.parametrize("number", range(9))
def test_one_damaged_file_of_each_format(
    number: int, whole: dict[str, Path], tmp_path: Path
) -> None:
    assert wrong(range(number, number + 1), whole, tmp_path) == []


def test_some_damaged_files(whole: dict[str, Path], tmp_path: Path) -> None:
    """Of each format seven; a few seconds."""
    assert wrong(range(FAST), whole, tmp_path) == []


def test_many_damaged_files(whole: dict[str, Path], tmp_path: Path) -> None:
    count = int(os.environ.get("TRAINCAST_FUZZ", SLOW))
    assert wrong(range(FAST, FAST + count), whole, tmp_path) == []


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ('{"a": [1.0, {"b": NaN}]}', ".a.b is nan"), ('{"a": -1}', ".a is -1"),
        ('{"clocks": {"a": -1.0}}', ""), ('{"clocks": {"a": Infinity}}', ".clocks.a is inf"),
    ],
)  # fmt: skip
def test_figures_that_are_none_are_found(out: str, said: str) -> None:
    assert fuzz.complaint(0, out, "") == said


@pytest.mark.parametrize(
    ("error", "right"),
    [("error: a sentence\n", True), ("Traceback\nerror: x", False), ("error: a\nb", False)],
)
def test_a_refusal_is_one_sentence(error: str, right: bool) -> None:
    assert (fuzz.complaint(2, "", error) == "") == right
    assert fuzz.complaint(1, "", error)


def test_the_same_number_is_the_same_damage(whole: dict[str, Path], tmp_path: Path) -> None:
    def made(name: str) -> dict[str, bytes]:
        folder = tmp_path / name
        path = fuzz.damaged(whole["kineto"], folder, fuzz.random.Random(5))
        return {file.name: file.read_bytes() for file in sorted(path.iterdir())}

    good = {file.name: file.read_bytes() for file in sorted(whole["kineto"].iterdir())}
    assert made("one") == made("two") != good
