"""Pictures of causes and of kernels under their roof, read from what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex

from sim import plots
from sim.analysis.roofline import roofline
from sim.graph import Builder, Communication, Compute, Fixed
from sim.machine import cluster
from sim.plots.style import KERNELS, LOST, TRANSFERS
from sim.timeline import Timeline
from tests.recipes import ran

ROWS = {
    "rank 0": {"waiting": 5.0, "exposed_tp": 4.0, "warm_up": 3.0},
    "rank 1": {"exposed_tp": 2.0, "drain": 7.0},
}


def pieces(figure) -> dict[str, list[tuple[float, float, str]]]:
    """By legend entry: left, width and colour of each bar that has a width."""
    bars = figure.axes[0].containers
    return {
        of.get_label(): [
            (bar.get_x(), bar.get_width(), to_hex(bar.get_facecolor()))
            for bar in of
            if bar.get_width()
        ]
        for of in bars
    }


def test_causes_stand_one_behind_another_in_the_order_of_the_palette() -> None:
    found = pieces(plots.causes(ROWS))
    tp = TRANSFERS["tp"]
    assert found["exposed tp"] == [(0.0, 4.0, tp), (0.0, 2.0, tp)]
    assert found["waiting"] == [(4.0, 5.0, LOST["waiting"])]
    assert found["warm up"] == [(9.0, 3.0, "#ffffff")]
    assert found["drain"] == [(2.0, 7.0, "#ffffff")]
    assert [*found] == ["exposed tp", "waiting", "warm up", "drain"]


def test_ends_say_the_seconds_or_what_is_given() -> None:
    words = [text.get_text() for text in plots.causes(ROWS).axes[0].texts]
    assert "12" in words
    assert "9" in words
    given = plots.causes(ROWS, ends={"rank 0": "30 % of the step"}).axes[0].texts
    assert "30 % of the step" in [text.get_text() for text in given]


def test_a_critical_path_is_drawn_by_kind_and_dimension() -> None:
    path = {"compute gemm": 5.0, "communication dp": 4.0, "straggler": 3.0, "lag": 1e-9}
    found = pieces(plots.causes({"path": path}))
    assert found == {
        "gemm": [(0.0, 5.0, KERNELS["gemm"])],
        "dp": [(5.0, 4.0, TRANSFERS["dp"])],
        "straggler": [(9.0, 3.0, LOST["straggler"])],
    }


def test_nothing_to_draw_is_drawn() -> None:
    assert plots.causes({}).axes
    assert plots.causes({"rank 0": {}}).axes


def kernels() -> Timeline:
    """Two products alike, of which one runs twice as long; a norm; a kernel of fixed length."""
    gemm = Compute("gemm", 6e12, 2e9)
    b = Builder()
    for name, work in (("fc1", gemm), ("fc1", gemm), ("norm", Compute("norm", 0.0, 3e9)),
                       ("read", Fixed(9.0))):  # fmt: skip
        b.add(name, rank=0, stream="compute", work=work)
    message = Communication("all_reduce", 8.0, (0, 1), "tp")
    b.add("sum", rank=0, stream="tp", work=message)
    return Timeline(
        b.graph(), np.array([0.0, 2.0, 6.0, 7.0, 0.0]), np.array([2.0, 6.0, 7.0, 16.0, 1.0])
    )


def test_the_table_of_kernels_by_hand() -> None:
    one, two = roofline(kernels()).to_dict("records")
    assert (one["name"], one["kind"], one["count"], one["total_s"]) == ("fc1", "gemm", 2, 6.0)
    assert (one["seconds"], one["intensity"], one["flops_per_s"]) == (3.0, 3000.0, 2e12)
    assert (two["name"], two["intensity"], two["flops_per_s"]) == ("norm", 0.0, 0.0)


def test_no_kernel_is_above_its_roof() -> None:
    """Of a whole step: FLOP/s at most the peak, and at most intensity x bandwidth."""
    model = {"preset": "llama3-8b", "layers": 2, "vocab": 1024}
    found = roofline(ran(model, 1, tp=2, sp=True).timeline)
    gpu = cluster.load("dgx_h100", 2).gpu
    assert len(found) > 10
    assert (found["flops_per_s"] <= gpu.peak["bf16"]).all()
    assert (found["flops_per_s"] <= found["intensity"] * gpu.memory_bandwidth * (1 + 1e-9)).all()


def test_the_roof_has_its_ridge_where_peak_and_bandwidth_meet() -> None:
    figure = plots.roofline(roofline(kernels()), {"bf16": 4e12, "fp32": 1e12}, 1e9)
    axes = figure.axes[0]
    (roof,) = axes.lines  # of bf16 alone: no kernel is in fp32
    assert roof.get_xdata()[1] == pytest.approx(4000.0)
    assert roof.get_ydata()[1:] == pytest.approx([4.0, 4.0])
    (points,) = axes.collections
    assert points.get_offsets().tolist() == [[3000.0, 2.0]]
    assert "kernels without FLOPs, 14% of the time, at 300% of the memory" in axes.get_xlabel()


def test_a_recording_has_no_place_under_a_roof() -> None:
    b = Builder()
    b.add("read", rank=0, stream="compute", work=Fixed(9.0))
    empty = roofline(Timeline(b.graph(), np.zeros(1), np.full(1, 9.0)))
    assert not len(empty)
    assert plots.roofline(empty, {"bf16": 4e12}, 1e9).axes
