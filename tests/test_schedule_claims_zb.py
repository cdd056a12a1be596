"""What zero-bubble schedules claim of their bubble and memory, against the simulation."""

from __future__ import annotations

import pytest

import schedules
from sim.schedule_run import figures, run_plan

NAMES = [
    "zb_h1",
    "zb_h2",
    "zb_1p",
    "zb_2p",
    "interleaved_zero_bubble",
    "zb_v",
    "v_half",
    "v_min",
    "one_f_one_b_v",
]
AT_MOST = {"zb_1p", "zb_2p", "zb_v", "v_half", "v_min", "one_f_one_b_v"}  # memory: not over
TIMES = [  # seconds of F, I, W
    (5.0, 4.0, 3.0),
    (4.0, 5.0, 1.0),
    (7.0, 2.0, 3.0),
    (2.0, 7.0, 3.0),
    (3.0, 8.0, 11.0),
    (5.0, 5.0, 5.0),
]
SHAPES = [(1, 3), (2, 1), (2, 3), (2, 6), (3, 3), (3, 6), (4, 2), (4, 4), (4, 7), (4, 8), (5, 10)]
SHAPES += [(6, 6), (7, 7)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("ranks", "microbatches"), SHAPES)
def test_claims_hold(name: str, ranks: int, microbatches: int) -> None:
    """Bubble: makespan less work, without hops. Memory: half freed at I, half at W."""
    module, options = schedules._module(name), schedules.options(name)
    try:
        schedules.check(name, ranks, microbatches)
    except ValueError:
        pytest.skip("torch refuses this shape")
    for f, i, w in TIMES:
        times = {"F": f, "I": i, "W": w}
        for chunks in (2, 3) if "chunks" in options else (1,):
            given = {"chunks": chunks} if "chunks" in options else {}
            given |= times if "F" in options else {}
            plan = schedules.load(name)(ranks, microbatches, **given)
            ran = figures(plan, run_plan(plan, times))
            held = module.peak_activations(ranks, microbatches, chunks)
            if name in AT_MOST:
                assert all(a <= b for a, b in zip(ran["peak_activations"], held, strict=True))
            else:
                assert ran["peak_activations"] == held
            claim = getattr(module, "bubble", lambda *_: None)(ranks, microbatches, chunks, f, i, w)
            if claim is not None:
                assert max(ran["idle_s"]) == claim, times


def test_bubbles_are_claimed_where_they_should_be() -> None:
    """None is the answer for unknown only: what the papers give is claimed."""
    claimed = {
        name: schedules._module(name).bubble(4, 8, 2, *TIMES[0])
        for name in ("zb_h1", "zb_h2", "zb_1p", "interleaved_zero_bubble")
    }
    assert claimed == {"zb_h1": 18, "zb_h2": 15, "zb_1p": 18, "interleaved_zero_bubble": 18}
    equal = {name: schedules._module(name).bubble(4, 8, 2, 5, 5, 5) for name in NAMES[5:8]}
    assert equal == {"zb_v": 15, "v_half": 25, "v_min": 55}
    assert schedules._module("v_half").bubble(4, 8, 2, *TIMES[0]) is None
