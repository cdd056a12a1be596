"""Fair sharing: max-min fairness by its definition, components apart, SimGrid's times."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.machine.network import fair_rates, rates

ORACLES = Path(__file__).parents[4] / "shared" / "data" / "oracles"

sizes = st.floats(0.01, 100.0)
flows = st.lists(
    st.dictionaries(st.integers(0, 5), sizes, min_size=1, max_size=4), min_size=1, max_size=9
)
rooms = st.lists(st.floats(0.5, 50.0), min_size=6, max_size=6).map(lambda v: dict(enumerate(v)))


def coefficients(flow):
    most = max(flow.values())
    return {link: load / most for link, load in flow.items()}


@pytest.mark.slow
@given(flows, rooms)
def test_no_link_carries_more_than_it_can(flows, capacity):
    speeds = rates(flows, capacity)
    for link, room in capacity.items():
        used = sum(v * coefficients(f).get(link, 0.0) for v, f in zip(speeds, flows, strict=True))
        assert used <= room * (1 + 1e-12)


@pytest.mark.slow
@given(flows, rooms)
def test_every_flow_has_a_full_link_on_which_none_is_faster(flows, capacity):
    """The definition of max-min fairness: Bertsekas and Gallager, Data Networks, 6.5.2."""
    speeds = rates(flows, capacity)
    pairs = list(zip(speeds, map(coefficients, flows), strict=True))
    full = {
        link
        for link, room in capacity.items()
        if sum(v * c.get(link, 0.0) for v, c in pairs) >= room * (1 - 1e-9)
    }
    for speed, own in pairs:
        fastest = [max(v for v, c in pairs if link in c) for link in full & own.keys()]
        assert any(speed >= other * (1 - 1e-9) for other in fastest)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(flows, rooms, flows, rooms, st.randoms(use_true_random=False))
def test_a_component_does_not_feel_the_others(ones, room, others, other_room, random):
    """Bit for bit, however the flows of both are mixed."""
    moved = [{link + 6: load for link, load in flow.items()} for flow in others]
    both = room | {link + 6: c for link, c in other_room.items()}
    order = sorted(range(len(ones) + len(moved)), key=lambda _: random.random())
    mine = [i for i in order if i < len(ones)]
    speeds = rates([(ones + moved)[i] for i in order], both)
    together = [v for i, v in zip(order, speeds, strict=True) if i < len(ones)]
    assert together == rates([ones[i] for i in mine], room)


@pytest.mark.slow
@given(flows, rooms)
def test_arrays_give_the_same_bits_as_lists(flows, capacity):
    start = np.cumsum([0] + [len(flow) for flow in flows])
    links = np.array([link for flow in flows for link in sorted(flow)])
    own = np.array([coefficients(flow)[link] for flow in flows for link in sorted(flow)])
    room = np.array([capacity[link] for link in range(6)])
    speed, alive = np.zeros(len(flows)), np.zeros(len(flows), int)
    fair_rates(start, links, own, room, speed, np.zeros(6), np.zeros(6), np.zeros(6), alive)
    assert speed.tolist() == rates(flows, capacity)


def test_a_collective_and_a_flow_compete_like_two_flows():
    """Worked by hand: link a (6) is shared 3 : 3; the second puts half its speed on b as well."""
    assert rates([{0: 8.0}, {0: 4.0, 1: 2.0}], {0: 6.0, 1: 9.0}) == [3.0, 3.0]


def test_loads_of_folded_clones_count_several_times():
    """Coefficient 3 on the shared link (12): 12 / (3 + 1) each; then b has 5 - 3 for the third."""
    start, links, own = [0, 2, 3, 4], [0, 1, 0, 1], [3.0, 1.0, 1.0, 1.0]
    speed = [0.0] * 3
    scratch = [[0.0] * 2 for _ in range(3)]
    fair_rates(start, links, own, [12.0, 5.0], speed, *scratch, [0] * 3)
    assert speed == [2.5, 4.5, 2.5]


def test_rounding_does_not_undo_a_level():
    """Two flows fill their own links a hair before the shared one (7.68); a tiny third is left.

    What is left of the shared link over 1e-10 is mostly rounding: 5.90768 where 5.90769 is right.
    """
    own_room = math.nextafter(7.68 / (0.7 + 0.6 + 1e-10), 0.0)
    start, links, own = [0, 2, 4, 5], [0, 2, 1, 2, 2], [1.0, 0.7, 1.0, 0.6, 1e-10]
    speed, scratch = [0.0] * 3, [[0.0] * 3 for _ in range(3)]
    fair_rates(start, links, own, [own_room, own_room, 7.68], speed, *scratch, [0] * 3)
    assert speed[:2] == [own_room] * 2
    assert speed[2] >= own_room


def test_a_flow_without_load_is_not_held_back():
    assert rates([{}, {0: 0.0}, {0: 2.0}], {0: 4.0}) == [float("inf"), float("inf"), 4.0]


def finish(case):
    """Each slot starts the next flow when its last one has ended; flows move at fair rates."""
    slots = int(case["rule"].split()[0])
    capacity = dict(enumerate(case["link_bytes_per_s"]))
    todo = list(enumerate(case["flows"]))[::-1]
    left, loads, now, ends = {}, {}, 0.0, [0.0] * len(todo)
    while todo or left:
        while todo and len(left) < slots:
            i, flow = todo.pop()
            left[i], loads[i] = float(flow["bytes"]), dict.fromkeys(flow["links"], 1.0)
        speeds = dict(zip(left, rates([loads[i] for i in left], capacity), strict=True))
        step = min(left[i] / speeds[i] for i in left)
        now += step
        for i in list(left):
            left[i] -= step * speeds[i]
            if left[i] <= 1e-9 * case["flows"][i]["bytes"]:
                ends[i] = now
                del left[i]
    return ends


@pytest.mark.skipif(not ORACLES.exists(), reason="needs ../shared/data/oracles")
@pytest.mark.parametrize(
    "name", ["cascade", "parking_lot", "unequal", "rail_64gpu", "random_64gpu"]
)
def test_completion_times_agree_with_simgrid(name):
    case = json.loads((ORACLES / f"flow_{name}.json").read_text())
    assert finish(case) == pytest.approx(case["finish_s"], rel=1e-8)
