"""The scatter of predicted against measured times shows each pair where it is."""

import numpy as np
import pytest

from sim import plots

SERIES = {"quick": [(1.0, 0.9), (10.0, 12.0)], "slow": [(300.0, 200.0)]}


@pytest.fixture(scope="module")
def axes():
    return plots.scatter(SERIES).axes[0]


def test_every_pair_is_a_mark_of_its_series(axes):
    drawn = {line.get_label(): line for line in axes.lines}
    for name, pairs in SERIES.items():
        assert list(zip(*drawn[name].get_data(), strict=True)) == pairs
        assert drawn[name].get_marker() != "None"
    marks = {(line.get_color(), line.get_marker()) for line in axes.lines}
    assert len(marks) == 3  # two series and the line y = x
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_the_line_is_where_both_are_equal_and_the_band_10_percent_around(axes):
    line = next(line for line in axes.lines if line.get_label() == "predicted = measured")
    x, y = line.get_data()
    np.testing.assert_array_equal(x, y)
    assert x[0] < 0.9
    assert x[-1] > 300.0
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    shares = sorted({round(float(high / right), 9) for right, high in corners})
    assert shares == [0.9, 1.1]


def test_more_series_than_colours_differ_by_their_mark():
    many = {f"family {k}": [(1.0, 1.0 + k)] for k in range(18)}
    lines = plots.scatter(many).axes[0].lines
    marks = {
        (line.get_color(), line.get_marker()) for line in lines if line.get_linestyle() == "None"
    }
    assert len(marks) == 18
