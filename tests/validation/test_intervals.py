"""Intervals of step times: what a family's hold, how wide they are, and what is assumed."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from sim.machine.assumed import ranges
from sim.table import table
from traincast.commands.parts import errors
from validation import sensitivity, tables
from validation.families import covered, families
from validation.readme import RESULTS, published
from validation.run import ComparedFigure, TableOutcome, summary

ASSUMED = Path(__file__).parents[2] / "validation" / "assumed.md"
TABLE = tables.read("simumax_b200")
ONE_ROW = TABLE._replace(rows=TABLE.rows[:1])


def row(measured: float, low: float, high: float, **moves: tuple[float, float]) -> ComparedFigure:
    of = {name.replace("_", ".", 1): both for name, both in moves.items()}
    return ComparedFigure("row", 10.0, measured, False, "one", 1.0, (low, high), of)


def test_a_family_holds_the_rows_whose_measured_lies_inside():
    """10 and 9 lie in theirs, an end included, 12 does not; widths are 20, 10 and 40 %."""
    rows = [row(10.0, 9.0, 11.0), row(9.0, 9.0, 10.0), row(12.0, 7.5, 11.5)]
    assert covered(rows) == (pytest.approx(2 / 3), pytest.approx(0.2))
    assert covered([ComparedFigure("a", 1.0, 1.0, family="one")]) == (None, None)
    (found,) = families([TableOutcome(TABLE, rows)])
    assert (found.coverage, found.width) == covered(rows)
    assert table([found._asdict()], *errors.FAMILY).cells()[0][6:8] == ["67 %", "20.0 %"]


def test_tables_of_step_times_have_a_column_of_intervals():
    one = row(9.0, 9.25, 11.5)
    (found,) = summary([TableOutcome(ONE_ROW, [one])])["tables"]
    (cells,) = table(found["rows"], *errors.columns(found)).cells()
    assert errors.columns(found)[-1][0] == "80 % interval"
    assert cells == ["row", "10.000", "9.000", "+11.1 %", "9.250 to 11.500"]
    (plain,) = summary([TableOutcome(ONE_ROW, [one._replace(interval=None)])])["tables"]
    assert errors.columns(plain)[-1][0] == "error"
    assert table(plain["rows"], *errors.columns(plain)).cells() == [cells[:-1]]


def test_a_family_owes_to_a_value_the_mean_of_its_rows():
    """-1 and -3 % at the low end, 2 and 0 % at the high end; the other family has none of it."""
    rows = [
        row(1.0, 1.0, 1.0, power_floor=(-0.01, 0.02)),
        row(1.0, 1.0, 1.0, power_floor=(-0.03, 0.0)),
        row(1.0, 1.0, 1.0)._replace(family="two"),
    ]
    outcomes = [TableOutcome(TABLE, rows)]
    found = sensitivity.sensitivities(outcomes)
    assert found["power.floor"] == {"one": (pytest.approx(-0.02), pytest.approx(0.01))}
    assert found["power.exponent"] == {}
    text = sensitivity.markdown(outcomes, "traincast validate --assumed a.md")
    low, high = ranges()["power.floor"][1:]
    assert f"| `power.floor` | 0.74 | {low:g} to {high:g} | -2.0, +1.0 |" in text


def test_every_assumed_value_says_what_each_family_owes_to_it():
    """One file has the value, its range and its source; another what it does to steps."""
    text = (files("sim.machine") / "assumed.toml").read_text(encoding="utf-8")
    entries = {
        f"{section}.{name}": of
        for section, some in tomllib.loads(text).items()
        for name, of in some.items()
    }
    head, *lines = re.findall(r"^\|.*\|$", ASSUMED.read_text(), re.MULTILINE)
    every = {row.family for name in tables.names() for row in tables.read(name).rows}
    assert {cell.strip() for cell in head.split("|")[4:-1]} == every - {""}
    shown = {cells[0].strip(" `"): cells[1:3] for cells in (of.split("|")[1:] for of in lines[1:])}
    assert shown.keys() == entries.keys(), "run: traincast validate --assumed validation/assumed.md"
    for name, of in entries.items():
        low, high = of["range"]
        assert [c.strip() for c in shown[name]] == [f"{of['value']:g}", f"{low:g} to {high:g}"]


def test_what_families_hold_in_the_results_is_of_their_rows():
    """The page's own rows, counted again; every interval holds its prediction.

    Seconds have three digits there, so a measured time that equals an end may be in or out.
    """
    text = RESULTS.read_text()
    found = re.findall(
        r"^\| (\S+) \| ([\d.]+) \| ([\d.]+) \| \S+ % \| ([\d.]+) to ([\d.]+) \|", text, re.MULTILINE
    )
    if not found:
        pytest.skip("results.md was written before there were intervals")
    assert len(found) == len(published(text))
    family = {row.id: row.family for name in tables.names() for row in tables.read(name).rows}
    inside: dict[str, list[tuple[bool, bool]]] = {}
    for name, *numbers in found:
        predicted, measured, low, high = map(float, numbers)
        assert low <= predicted <= high
        inside.setdefault(family[name], []).append((low < measured < high, low <= measured <= high))
    for name, hits in inside.items():
        said = re.search(
            rf"^\| {re.escape(name)} \|(?: [^|]*\|){{5}} (\d+) % \|", text, re.MULTILINE
        )
        assert said is not None, name
        least, most = (round(100 * sum(of) / len(hits)) for of in zip(*hits, strict=True))
        assert least <= int(said[1]) <= most, name
