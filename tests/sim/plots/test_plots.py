"""Pictures show what the timeline says: read from the drawn shapes, not from the code."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from sim import plots
from sim.graph import Builder, Communication, Fixed
from sim.machine import cluster
from sim.memory.curve import Curve
from sim.plots.style import OTHER, PHASES, TRANSFERS, pale
from sim.runs.schedule_run import plan_of, run_plan
from sim.timeline import Timeline

pytestmark = pytest.mark.slow


def timeline(*ops: tuple[int, str, int, float, float], stage: int = 0) -> Timeline:
    """Ops (rank, phase or dimension, microbatch, start, end) as a timeline."""
    b = Builder()
    for rank, what, microbatch, start, end in ops:
        known = what in PHASES
        seconds = end - start
        work = Fixed(seconds) if known else Fixed(seconds, "communication", what)
        stream, phase = ("compute", what) if known else (what, "")
        b.add(what, rank, stream, work, phase=phase, microbatch=microbatch, stage=stage)
    start, end = (np.array([op[k] for op in ops], float) for k in (3, 4))
    return Timeline(b.graph(), start, end)


def spans(figure: Figure, colour: str) -> list[tuple[float, float]]:
    """Left and right of every rectangle of a colour."""
    found = []
    for drawn in figure.axes[0].collections:
        assert isinstance(drawn, PolyCollection)
        if to_hex(drawn.get_facecolor()[0]) == colour:
            xs = [path.vertices[:, 0] for path in drawn.get_paths()]
            found += [(float(x.min()), float(x.max())) for x in xs]
    return sorted(found)


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_every_op_is_where_it_ran():
    of = timeline((0, "F", 3, 0.0, 5.0), (0, "I", 3, 6.0, 10.0), (1, "F", 3, 5.0, 10.0))
    figure = plots.timeline(of, title="two ranks")
    assert spans(figure, PHASES["F"][1]) == [(0.0, 5.0), (5.0, 10.0)]
    assert spans(figure, PHASES["I"][1]) == [(6.0, 10.0)]
    assert words(figure) == ["3", "3", "3"]
    assert figure.axes[0].get_xlabel() == "s"
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["rank 0", "rank 1"]
    key = [text.get_text() for text in figure.legends[0].get_texts()]
    assert key == ["forward", "input gradient", "no computing"]
    figure = plots.timeline(replace(of, graph=replace(of.graph, stands_for={1: 1200})))
    assert figure.axes[0].get_yticklabels()[1].get_text() == "rank 1 x 1,200"


def test_kernels_of_one_microbatch_are_one_bar_and_gaps_stay():
    """A thousand kernels back to back draw as one; a visible gap splits them."""
    kernels = [
        (0, "F", 0, k * 1e-3, (k + 1) * 1e-3) for k in range(1000) if k not in range(500, 600)
    ]
    figure = plots.timeline(timeline(*kernels), unit="ms")
    assert spans(figure, PHASES["F"][1]) == [(0.0, 500.0), (600.0, 1000.0)]


def test_a_dot_shows_what_fills_most_of_it():
    """A hundred thousand kernels in turn: forward has 3 of 5 parts of each dot, no dot is empty."""
    turn = [("F", 3e-5), ("I", 1e-5), ("W", 1e-5)]
    now, kernels = 0.0, []
    for k in range(99_999):
        phase, seconds = turn[k % 3]
        kernels.append((0, phase, k // 30_000, now, now + seconds))
        now += seconds
    figure = plots.timeline(timeline(*kernels), unit="s")
    drawn = spans(figure, PHASES["F"][1])
    assert len(drawn) <= 4
    assert drawn[0][0] == pytest.approx(0.0)
    assert drawn[-1][1] == pytest.approx(now, rel=1e-3)
    assert all(a[1] == pytest.approx(b[0]) for a, b in pairwise(drawn))
    assert not spans(figure, PHASES["W"][1])


def test_a_backward_pass_that_takes_turns_is_one_bar_in_bands():
    """200 layers whose input gradient takes 3 ms and weight gradient 1 ms, after a forward."""
    ops = [(0, "F", 0, 0.0, 0.8)]
    for k in range(200):
        now = 0.8 + k * 4e-3
        ops += [(0, "I", 0, now, now + 3e-3), (0, "W", 0, now + 3e-3, now + 4e-3)]
    figure = plots.timeline(timeline(*ops), unit="s")
    heights = {}
    for phase in "IW":
        assert spans(figure, PHASES[phase][1]) == [(0.8, pytest.approx(1.6))]
        for drawn in figure.axes[0].collections:
            if to_hex(drawn.get_facecolor()[0]) == PHASES[phase][1]:
                heights[phase] = np.ptp(drawn.get_paths()[0].vertices[:, 1])
    assert heights["I"] == pytest.approx(3 * heights["W"])
    assert spans(figure, PHASES["F"][1]) == [(0.0, 0.8)]


def test_kernels_of_the_optimizer_between_those_of_a_backward_are_in_its_bands():
    """Layer by layer 3 ms of input gradient, 1 ms of weight gradient, and 1 ms that scales it."""
    ops = [(0, "F", 0, 0.0, 0.8)]
    for k in range(200):
        now = 0.8 + k * 5e-3
        ops += [(0, "I", 0, now, now + 3e-3), (0, "W", 0, now + 3e-3, now + 4e-3)]
        ops += [(0, "O", -1, now + 4e-3, now + 5e-3)]
    figure = plots.timeline(timeline(*ops, (0, "O", -1, 1.9, 2.0)), unit="s")
    for phase in "IW":
        assert spans(figure, PHASES[phase][1]) == [(0.8, pytest.approx(1.8, abs=5e-3))]
    assert [round(left, 2) for left, _ in spans(figure, PHASES["O"][1])] == [0.8, 1.8, 1.9]


def test_dimensions_of_communication_have_their_own_lanes():
    of = timeline((0, "F", 0, 0.0, 4.0), (0, "tp", 0, 1.0, 3.0), (0, "dp", 0, 2.0, 9.0))
    figure = plots.timeline(of)
    tracks = {}
    for drawn in figure.axes[0].collections[1:]:
        ys = drawn.get_paths()[0].vertices[:, 1]
        tracks[float(ys.min()), float(ys.max())] = drawn
    ordered = sorted(tracks)
    assert len(ordered) == 3
    assert all(low[1] <= high[0] for low, high in pairwise(ordered))


def test_a_transfer_is_pale_until_its_peer_comes():
    """Rank 0 is ready at 1 s, rank 1 at 4 s, both end at 6 s: 3 s of waiting, 2 s of moving."""
    b = Builder()
    work = Communication("p2p", 1.0, (0, 1), "pp")
    b.join([b.add("send", 0, "pp", work), b.add("recv", 1, "pp", work)])
    b.add("F", 0, "compute", Fixed(9.0), phase="F", microbatch=0)
    of = Timeline(b.graph(), np.array([1.0, 4.0, 0.0]), np.array([6.0, 6.0, 9.0]))
    figure = plots.timeline(of)
    assert spans(figure, pale(TRANSFERS["pp"])) == [(1.0, 4.0)]
    assert spans(figure, TRANSFERS["pp"]) == [(4.0, 6.0), (4.0, 6.0)]
    key = [text.get_text() for text in figure.legends[0].get_texts()]
    assert key == ["forward", "pp", "waiting for a peer", "no computing"]


@pytest.mark.parametrize("p2p", [0.0, 0.5])
def test_a_free_network_leaves_only_waiting(p2p):
    """8 stages: 7 boundaries that 8 microbatches cross both ways, each message on 2 ranks."""
    times = {"F": 5.0, "I": 4.0, "W": 3.0, "p2p": p2p}
    figure = plots.timeline(run_plan(plan_of("interleaved_1f1b", 4, 8, 2), times))
    moving = sum(end - start for start, end in spans(figure, TRANSFERS["pp"]))
    assert spans(figure, pale(TRANSFERS["pp"]))
    assert (moving > 0.0) == (p2p > 0.0)
    assert moving <= 7 * 8 * 2 * p2p * 2


def test_every_dimension_has_its_own_colour():
    colours = [*TRANSFERS.values(), OTHER, *map(pale, TRANSFERS.values())]
    assert len({*colours}) == len(colours)


def test_a_legend_with_many_entries_is_not_wider_than_the_picture():
    ops = [(0, phase, 0, 2.0 * k, 2.0 * k + 1) for k, phase in enumerate("FRIWO")]
    ops += [(0, name, 0, 0.0, 9.0) for name in TRANSFERS]
    figure = plots.timeline(timeline(*ops))
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0.0
    assert box.x1 <= figure.bbox.x1


@pytest.mark.parametrize(("name", "gpus", "drawn"), [("dgx_h100", 16, 16), ("selene", 2048, 32)])
def test_a_machine_is_drawn_with_its_links(name, gpus, drawn):
    of = cluster.load(name, gpus)
    figure = plots.topology(of)
    numbers = words(figure)
    assert {str(of.gpus - 1), "0", "NVSwitch", "NIC", "leaf", "spine"} <= {*numbers}
    lines = sum(len(drawn.get_segments()) for drawn in figure.axes[0].collections)
    upwards = {2048: 8 * 4 + 2, 16: 8}[gpus]  # leaves of four units below two spines and a core
    assert lines == 3 * drawn + upwards
    key = [text.get_text() for text in figure.legends[0].get_texts()]
    assert key[0].startswith(f"GPU - NVSwitch: {gpus:,} links of ")
    assert ("4 of 256 nodes" in figure.axes[0].get_title(loc="left")) == (gpus == 2048)


def test_of_large_nodes_some_gpus_are_drawn_each_with_its_port():
    """Two racks of 72: 18 of each, with NVSwitch and NIC, below four leaves and a spine."""
    figure = plots.topology(cluster.load("gb200_nvl72", 144))
    assert figure.axes[0].get_title(loc="left").endswith(", 18 GPUs of each")
    lines = sum(len(drawn.get_segments()) for drawn in figure.axes[0].collections)
    assert lines == 3 * 2 * 18 + 4
    assert {"0", "71", "72", "143"} <= {*words(figure)}
    whole = plots.topology(cluster.load("gb200_nvl72", 64))  # part of a rack, all of it drawn
    assert whole.axes[0].get_title(loc="left") == "gb200_nvl72: 64 GB200-186GB"
    assert {str(gpu) for gpu in range(64)} <= {*words(whole)}


def test_routers_on_the_way_stand_above_those_of_nodes_and_links_in_a_row_are_arcs(tmp_path):
    """Five nodes in a torus of 3 x 3: the route from 0.2 to 1.1 passes 1.2, without a GPU."""
    path = tmp_path / "torus.toml"
    path.write_text(
        'base = "dgx_a100"\n[fabric]\nkind = "torus"\nshape = "3x3"\nlink_bandwidth = "1 GB/s"\n'
    )
    figure = plots.topology(cluster.load(path, 8 * 5))
    at = {text.get_text(): text.get_position() for text in figure.axes[0].texts}
    assert {y for name, (_, y) in at.items() if name in ("0.0", "0.1", "0.2", "1.0", "1.1")} == {2}
    assert {name for name, (x, y) in at.items() if y == 3 and x > 0} == {"1.2"}
    curves = [line for of in figure.axes[0].collections for line in of.get_segments()]
    assert {len(line) for line in curves} == {2, 24}
    assert all(line[0][1] == line[-1][1] < line[12][1] for line in curves if len(line) == 24)


def test_a_rank_with_several_stages_shows_torchs_names():
    b = Builder()
    for stage in (0, 2):
        b.add("F", 0, "compute", Fixed(5.0), phase="F", stage=stage, microbatch=1)
    of = Timeline(b.graph(), np.array([0.0, 5.0]), np.array([5.0, 10.0]))
    assert words(plots.timeline(of)) == ["0F1", "2F1"]


def test_windows_and_ranks_select():
    of = timeline((0, "F", 0, 0.0, 4.0), (1, "F", 0, 4.0, 8.0), (2, "F", 0, 8.0, 12.0))
    figure = plots.timeline(of, ranks=[2, 1], window=(3.0, 9.0))
    assert figure.axes[0].get_xlim() == (3.0, 9.0)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["rank 2", "rank 1"]


def test_memory_steps_and_limit():
    curve = Curve(np.array([0.0, 1.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 2.0]) * 2**30)
    figure = plots.memory({4: curve}, capacity=4 * 2**30)
    line, limit = figure.axes[0].get_lines()
    assert line.get_ydata().tolist() == [1.0, 3.0, 2.0, 2.0]
    assert line.get_drawstyle() == "steps-post"
    assert line.get_xdata().tolist() == [0.0, 1.0, 3.0, 4.0]
    assert figure.axes[0].get_xlim() == (0.0, 4.0)
    assert set(limit.get_ydata()) == {4.0}
    assert figure.axes[0].get_ylabel() == "GiB"


def test_memory_is_drawn_with_what_a_rank_takes_besides_it():
    curve = Curve(np.array([0.0, 1.0, 4.0]), np.array([1.0, 3.0, 2.0]) * 2**30)
    figure = plots.memory({0: curve}, capacity=4 * 2**30, besides=0.5 * 2**30)
    line, _ = figure.axes[0].get_lines()
    assert line.get_ydata().tolist() == [1.5, 3.5, 2.5]
    assert figure.axes[0].get_ylabel() == "GiB, with context and NCCL"


@pytest.mark.parametrize("ending", ["png", "svg", "svgz", "ps", "eps", "pdf", "jpg", "webp"])
def test_files_are_the_same_bytes_twice(ending, tmp_path, monkeypatch):
    """Whatever the clock says, and wherever the file is."""
    for k, name in enumerate(("a", "b")):
        monkeypatch.setattr(time, "time", lambda k=k: 1e9 + 86400.0 * k)
        monkeypatch.setattr(time, "ctime", lambda k=k: f"day {k}")
        drawn = plots.timeline(timeline((0, "F", 0, 0.0, 4.0)))
        plots.save(drawn, tmp_path / f"{name}.{ending}")
    one, other = ((tmp_path / f"{name}.{ending}").read_bytes() for name in "ab")
    assert one == other
    heads = {"png": b"\x89PNG", "svg": b"<?xml", "svgz": b"\x1f\x8b", "ps": b"%!PS", "eps": b"%!PS"}
    assert one.startswith(heads.get(ending, one[:4]))


def test_bad_input_is_one_sentence(tmp_path):
    of = timeline((0, "F", 0, 0.0, 4.0))
    with pytest.raises(ValueError, match="rank 7 was not simulated; there are 0 to 0"):
        plots.timeline(of, ranks=[7])
    with pytest.raises(ValueError, match="no unit 'h'; there are auto, s, ms, us"):
        plots.timeline(of, unit="h")
    with pytest.raises(ValueError, match="the window 3 to 3 s is empty"):
        plots.timeline(of, window=(3.0, 3.0))
    with pytest.raises(ValueError, match="no picture format 'xyz'"):
        plots.save(plots.timeline(of), tmp_path / "x.xyz")


def test_nothing_at_all_draws(tmp_path):
    empty = Timeline(Builder().graph(), np.empty(0), np.empty(0))
    plots.save(plots.timeline(empty), tmp_path / "empty.png")
    plots.save(plots.memory({}), tmp_path / "memory.svg")


def test_communication_alone_draws():
    b = Builder()
    b.add("ar", 0, "tp", Communication("all_reduce", 1.0, (0, 1), "tp"))
    figure = plots.timeline(Timeline(b.graph(), np.zeros(1), np.ones(1)))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["tp", "no computing"]


def test_bars_too_narrow_to_see_keep_their_shares() -> None:
    """1,100 each of F, I and W in turn, of 0.58 dots: none is drawn for another's seconds."""
    ops = [(0, "FIW"[k % 3], k, float(k), k + 1.0) for k in range(3300)]
    figure = plots.timeline(timeline(*ops))
    for phase in "FIW":
        drawn = sum(right - left for left, right in spans(figure, PHASES[phase][1]))
        assert drawn == pytest.approx(1100, rel=0.1)


@pytest.mark.parametrize("microbatches", [8, 12])
def test_a_step_says_its_stage_where_there_is_room(microbatches: int) -> None:
    """In each bar of the interleaved schedule at 4 ranks and 8 microbatches, not at 12; no label
    reaches into the next one."""
    plan = plan_of("interleaved_1f1b", 4, microbatches, 2)
    figure = plots.timeline(run_plan(plan, {"F": 1.0, "I": 1.0, "W": 1.0}))
    labels = figure.axes[0].texts
    steps = {str(step) for items in plan for step in items}
    assert (steps == {label.get_text() for label in labels}) == (microbatches == 8)
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in labels]
    boxes.sort(key=lambda box: (round(box.y0 / 10), box.x0))
    rows = [(one, other) for one, other in pairwise(boxes) if abs(one.y0 - other.y0) < 5]
    assert len(rows) > 100
    assert all(one.x1 < other.x0 or other.x1 < one.x0 for one, other in rows)


@pytest.mark.parametrize("count", [0, 1, 3, 16, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spread", [1.0, 1e-3, 0.0])
def test_no_text_of_the_frontier_is_over_another(count, spread):
    """However many ways there are and however near they are; points are numbered by time."""
    rng = np.random.default_rng(count)
    seconds, held = 1 + spread * rng.random(count), (1 + spread * rng.random(count)) * 60 * 2**30
    names = [f"way {k} " + "of many letters " * (k % 4) for k in range(count)]
    points = [plots.Point(*row) for row in zip(names, seconds, held, strict=True)]
    made = plots.frontier(points, capacity=80e9, title="one job")
    made.canvas.draw()
    boxes = [Text.get_window_extent(text) for text in made.axes[0].texts]  # without its line
    assert len(boxes) == 2 * count + 1
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    assert all(made.bbox.x0 <= box.x0 and box.x1 <= made.bbox.x1 for box in boxes)
    said = [text.get_text() for text in made.axes[0].texts]
    assert "GPU: 74.51 GiB" in said  # the unit of the axis
    numbers = {text: k for k, text in enumerate(said)}
    for k, point in enumerate(sorted(points, key=lambda point: point.seconds), 1):
        (line,) = [text for text in said if text.split()[0] == str(k) and text != str(k)]
        assert line.split()[2] == point.name.split()[1]
        annotation = made.axes[0].texts[numbers[str(k)]]
        assert annotation.xy == (point.seconds, point.bytes / 2**30)


def stacked(figure: Figure) -> dict[str, list[tuple[float, float]]]:
    """By piece: left and right of each bar of it, read from the drawn rectangles."""
    return {
        str(bars.get_label()): [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]
        for bars in figure.axes[0].containers
    }


def times(compute: float, idle: float, **exposed: float) -> dict[str, object]:
    """``time_s`` of a summary, of what its picture reads."""
    named = {name: {"mean": seconds} for name, seconds in exposed.items()}
    return {"compute": {"mean": compute}, "empty": {"mean": idle}, "exposed": named}


def test_shares_are_stacked_to_the_step():
    """5 s computing, 4 s tp, 3 s of nothing; what is too thin to see is left out of the key."""
    figure = plots.shares({"a": times(5.0, 3.0, tp=4.0, new=0.001), "b": times(7.0, 0.0, odd=2.0)})
    assert stacked(figure) == {
        "computing": [(0.0, 5.0), (0.0, 7.0)],
        "exposed tp": [(5.0, 9.0), (7.0, 7.0)],
        "exposed odd": [(9.0, 9.0), (7.0, 9.0)],
        "nothing": [(9.0, 12.0), (9.0, 9.0)],
    }
    assert [word for word in words(figure) if word.isdigit()] == ["12", "9"]
    assert words(figure).count("computing") == 2  # in the bars, for grey print
    colours = {to_hex(bars[0].get_facecolor()) for bars in figure.axes[0].containers}
    assert {TRANSFERS["tp"], OTHER} < colours
    assert len(colours) == 4


def test_curves_go_through_their_points():
    lines = {"one": {1.0: 5.0, 8.0: 3.0}, "two": {2.0: 4.0}}
    figure = plots.curves(lines, x="GPUs", y="step, s", scales=("log", "linear"))
    axes = figure.axes[0]
    drawn = {line.get_label(): [*zip(*line.get_data(), strict=True)] for line in axes.lines}
    assert drawn == {"one": [(1.0, 5.0), (8.0, 3.0)], "two": [(2.0, 4.0)]}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "8"]
    assert axes.get_ylim()[0] == 0.0
    assert axes.get_ylim()[1] > 5.0
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("GPUs", "step, s")


def test_notebooks_show_a_picture_by_itself_and_always_the_same():
    pictures = [
        plots.curves({"one": {1.0: 5.0, 8.0: 3.0}}, x="x", y="y")._repr_png_() for _ in range(2)
    ]
    assert pictures[0] == pictures[1]
    assert pictures[0].startswith(b"\x89PNG")
    assert len(pictures[0]) < 20_000


def test_a_small_matrix_has_room_for_its_title():
    title = "llama3-8b: what each rank costs, of 1.087 in all"
    made = plots.heat(np.ones((1, 2)), [0], [0, 1], row="r", column="c", says="s", title=title)
    made.canvas.draw()
    said = made.axes[0]._left_title.get_window_extent()
    assert made.axes[0].get_title("left") == title
    assert said.x1 < made.bbox.x1


def test_names_under_the_bars_of_a_waterfall_stand_apart():
    names = ("compute cross_entropy", "compute attention_backward", "communication embedding")
    made = plots.waterfall(1.0, 1.6, dict.fromkeys(names, 0.2))
    made.canvas.draw()
    boxes = [label.get_window_extent() for label in made.axes[0].get_xticklabels()]
    assert not [pair for pair in pairwise(boxes) if pair[0].overlaps(pair[1])]
