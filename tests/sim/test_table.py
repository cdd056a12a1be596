"""Tables: columns over plain rows, in text and in Markdown."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from sim.table import markdown, table, written


class Pair(NamedTuple):
    name: str
    spread: dict[str, float]


def test_a_column_finds_its_value_by_place_key_attribute_path_or_function() -> None:
    """Each gives the 3.0 of a row that has other numbers beside it."""
    columns = ("first", ("key", "b"), ("path", "c/d"), ("made", lambda row: row["b"] * 1.0))
    row = {0: 3.0, "b": 3.0, "c": {"d": 3.0, "e": 4.0}, "f": 5.0}
    assert table([row], *columns).values() == [[3.0] * 4]
    assert table([Pair("x", {"max": 3.0})], ("most", "spread/max")).values() == [[3.0]]
    with pytest.raises(KeyError):
        table([row], ("none", "nothing")).values()


def test_values_are_written_by_unit_format_or_function() -> None:
    assert [written(2.0**30, "bytes"), written(0.00123, "s"), written(1234, ",")] == [
        "1.00 GiB", "1.23 ms", "1,234",
    ]  # fmt: skip
    assert [written(None, ".1f"), written("-", ".1f"), written("a", "{}s".format)] == [
        "", "-", "as",
    ]  # fmt: skip
    assert written((0.25, -0.5), "+.0 %") == "+25 % to -50 %"


def test_markdown_aligns_and_escapes() -> None:
    """The first column left, others right unless they say so; an empty cell takes one space."""
    of = table([("a|b", None, 2)], "name", ("text", None, "", True), "number")
    assert markdown(of).splitlines() == [
        "| name | text | number |", "|---|---|--:|", "| a\\|b | | 2 |",
    ]  # fmt: skip
    assert markdown(table([], "a", "b", left=True)).endswith("|---|---|")
