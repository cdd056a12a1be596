"""Changed recipes, topologies and orders end in figures or in one sentence: :mod:`fuzz_inputs`.

TRAINCAST_FUZZ=1000 tries so many recipes, and 300 topologies and orders, in the slow test.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.traincast import damaged_inputs as fuzz
from tests.traincast.fuzzing import command, complaint

pytestmark = pytest.mark.slow

FAST, SLOW = 30, 20
COUNT = int(os.environ.get("TRAINCAST_FUZZ", SLOW))


def wrong(kind: str, numbers: range, folder: Path) -> list[tuple[str, str]]:
    return [found for n in numbers if (found := fuzz.attempt(kind, n, folder))[1]]


@pytest.mark.parametrize("kind", [*fuzz.KINDS])
@pytest.mark.parametrize(
    "first", [pytest.param(k, marks=[pytest.mark.slow] * (k > 0)) for k in range(0, FAST, 6)]
)
def test_some_changed_inputs(kind: str, first: int, tmp_path: Path) -> None:
    assert wrong(kind, range(first, first + 6), tmp_path) == []


@pytest.mark.parametrize("kind", [*fuzz.KINDS])
def test_many_changed_inputs(kind: str, tmp_path: Path) -> None:
    count = COUNT if kind == "recipes" else COUNT * 3 // 10
    assert wrong(kind, range(FAST, FAST + count), tmp_path) == []


@pytest.mark.parametrize("kind", [*fuzz.KINDS])
def test_the_same_number_is_the_same_text_and_enough_of_them_run(kind: str, tmp_path: Path) -> None:
    """A fuzzer of which all is refused at once would find nothing behind the refusals."""
    made, name, commands = fuzz.KINDS[kind]
    texts = [made(random.Random(n)) for n in range(12)]
    assert texts == [made(random.Random(n)) for n in range(12)]
    assert len({*texts}) > 9
    codes = set()
    for text in texts:
        (tmp_path / name).write_text(text, encoding="utf-8")
        given = [tmp_path / name if word == "FILE" else word for word in commands[0]]
        codes.add(command(*given, "--json")[0])
    assert codes == {0, 2}


@pytest.mark.parametrize("text", ['"" = 1', '[model]\n"" = 1', '[training.fp8]\n"" = 1'])
def test_an_empty_key_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(text)
    code, out, error = command("check", tmp_path / "r.toml")
    assert (code, out) == (2, "")
    assert "unknown key " in error
    assert '"";' in error


def test_an_integer_of_many_digits_is_refused(tmp_path: Path) -> None:
    """Python reads none of over 4,300; the file may be a recipe, a topology or a job's."""
    (tmp_path / "r.toml").write_text(f"[training]\nglobal_batch = {'9' * 5000}")
    for words in (["check", tmp_path / "r.toml"], ["topology", str(tmp_path / "r.toml")]):
        code, out, error = command(*words)
        assert complaint(code, out, error) == ""
        assert code == 2
        assert "has a number with too many digits" in error
