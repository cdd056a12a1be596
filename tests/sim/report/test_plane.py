"""The plane of time and memory inside a page."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from sim.plots.frontier import Point
from sim.report.plane import WIDE, plane

GIB = 2**30
POINTS = [Point("a", 2.0, 20 * GIB), Point("<b> & c", 3.0, 10 * GIB), Point("d", 3.5, 15 * GIB)]


def svg(points: list[Point], capacity: float | None = None) -> ElementTree.Element:
    found = ElementTree.fromstring(plane(points, capacity)).find("svg")
    assert found is not None
    return found


def places(of: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in of.iter("circle")]


def test_points_stand_where_their_numbers_are() -> None:
    """Equal steps of time and of memory are equal distances; more memory is higher."""
    (ax, ay), (bx, by), (dx, dy) = places(svg(POINTS))
    assert (dx - bx) / (bx - ax) == pytest.approx(0.5, abs=0.01)
    assert (by - dy) / (dy - ay) == pytest.approx(1.0, abs=0.01)
    assert ay < dy < by


def test_the_line_joins_what_no_other_beats_and_points_say_their_names() -> None:
    found = svg(POINTS)
    line = found.find("polyline")
    assert line is not None
    corners = [tuple(map(float, at.split(","))) for at in line.attrib["points"].split()]
    assert corners == places(found)[:2]
    assert [title.text for title in found.iter("title")] == [
        "a: 2 s, 20.00 GiB", "<b> & c: 3 s, 10.00 GiB", "d: 3.5 s, 15.00 GiB"
    ]  # fmt: skip


def test_the_limit_of_the_gpu_stands_above_what_fits() -> None:
    found = svg(POINTS, 40.0 * GIB)
    limit = next(p for p in found.iter("path") if p.attrib["class"] == "limit")
    height = float(re.findall(r"M[0-9.]+ ([0-9.]+)", limit.attrib["d"])[0])
    assert height < min(y for _, y in places(found))


def test_one_point_and_none() -> None:
    assert len(places(svg(POINTS[:1]))) == 1
    assert plane([]) == ""


def test_the_last_tick_of_short_times_is_not_cut_off() -> None:
    """A digit is at most 8 wide in text of 13."""
    drawn = plane([Point("a", 0.00055, 1e9), Point("b", 0.00074, 2e9)])
    ticks = re.findall(r'<text x="([0-9.]+)"[^>]*"middle">(0\.[0-9]+)<', drawn)
    assert len(ticks) > 3
    assert all(float(x) + 8 * len(said) / 2 <= WIDE for x, said in ticks)
