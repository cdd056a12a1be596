"""What every schedule claims of its bubble and its memory, against the simulation."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

import schedules
from sim.builder.strategies.exchange import Policy
from sim.runs.schedule_run import figures, plan_of, run_plan

pytestmark = pytest.mark.slow

NAMES = schedules.names()
AT_MOST = {"zb_1p", "zb_2p", "zb_v", "v_half", "v_min", "one_f_one_b_v"}  # memory: not over
TIMES = [  # seconds of F, I, W
    (5.0, 4.0, 3.0), (2.0, 7.0, 10.0), (4.0, 5.0, 1.0), (7.0, 2.0, 3.0), (5.0, 5.0, 5.0),
]  # fmt: skip
SHAPES = [(1, 3), (2, 1), (2, 4), (3, 3), (3, 6), (4, 2), (4, 4), (4, 7), (4, 8), (5, 10), (6, 12)]
LARGE = 48  # ranks times microbatches times chunks, from which on a case takes its time


def runs(name: str, ranks: int, microbatches: int) -> bool:
    """Whether the schedule takes that shape."""
    try:
        schedules.check(name, ranks, microbatches)
    except ValueError:
        return False
    return True


def case(*values: Any, size: int) -> Any:
    """The values of a parametrised test; a large one is slow."""
    return pytest.param(*values, marks=[pytest.mark.slow] * (size >= LARGE))


def claims(name: str) -> Any:
    """The module that makes a schedule's claims."""
    return schedules._module(name)


CLAIMING = [  # a schedule may leave out either claim, or both
    name for name in NAMES if {"bubble", "peak_activations"} & vars(claims(name)).keys()
]
CASES = [
    case(name, p, m, size=3 * p * m) for name in CLAIMING for p, m in SHAPES if runs(name, p, m)
]


def nothing(*_: float) -> None:
    """Stands for a claim that a schedule does not make."""


def simulated(
    name: str, ranks: int, microbatches: int, chunks: int, times: tuple[float, float, float]
) -> dict[str, Any]:
    """Its figures without hops, overlapped pairs one member after the other."""
    seconds = dict(zip("FIW", times, strict=True)) | {"p2p": 0.0}
    plan = plan_of(name, ranks, microbatches, chunks, seconds)
    return figures(plan, run_plan(plan, seconds, pair="serial"))


@pytest.mark.parametrize(("name", "ranks", "microbatches"), CASES)
def test_claims_hold(name: str, ranks: int, microbatches: int) -> None:
    """Bubble: makespan less work of the idlest rank. Memory: half freed at I, half at W."""
    several = "chunks" in schedules.options(name)
    every = (2, 3) if several else (schedules.stages_per_rank(name),)
    for chunks, times in product(every, TIMES):
        ran = simulated(name, ranks, microbatches, chunks, times)
        held = getattr(claims(name), "peak_activations", nothing)(ranks, microbatches, chunks)
        if held is not None and name in AT_MOST:
            assert all(a <= b for a, b in zip(ran["peak_activations"], held, strict=True))
        elif held is not None:
            assert ran["peak_activations"] == held
        claim = getattr(claims(name), "bubble", nothing)(ranks, microbatches, chunks, *times)
        if claim is not None:
            assert max(ran["idle_s"]) == claim, (chunks, times)


def test_every_schedule_is_held_to_its_claims_in_several_shapes() -> None:
    """No file is left out because its ``check`` refuses the shapes tried here."""
    tried = {name: sum(name == one.values[0] for one in CASES) for name in CLAIMING}
    assert min(tried.values()) >= 3, tried


@pytest.mark.parametrize("group", [4, 6, 8, 12])
def test_a_larger_group_keeps_the_bubble_and_holds_more(group: int) -> None:
    """Megatron's ``microbatch_group_size_per_vp_stage``, 4 ranks and 12 microbatches."""
    module = claims("interleaved_1f1b")
    plan = schedules.load("interleaved_1f1b")(4, 12, 3, group)
    ran = figures(plan, run_plan(plan, {"F": 5.0, "I": 4.0, "W": 3.0}))
    assert max(ran["idle_s"]) == module.bubble(4, 12, 3, 5.0, 4.0, 3.0) == 36
    assert ran["peak_activations"] == module.peak_activations(4, 12, 3, group)
    assert ran["peak_activations"][0] == 2 * 3 + 2 * group + 1


OVERLAPPED = [  # ranks, microbatches, chunks, group
    *(case(p, m, v, None, size=p * m * v) for p, m in SHAPES for v in (1, 2, 3)),
    *(case(4, m, 2, g, size=8 * m) for m, g in ((8, 8), (12, 6), (14, 5), (14, 10))),
    (4, 2, 3, 2),
]


@pytest.mark.parametrize(("ranks", "microbatches", "chunks", "group"), OVERLAPPED)
def test_overlapped_pairs_keep_the_bubble_and_hold_one_more(
    ranks: int, microbatches: int, chunks: int, group: int | None
) -> None:
    """Interleaved 1F1B as Megatron overlaps it, pairs serial and fused, in the policies claimed."""
    module = claims("interleaved_1f1b")
    shape = (ranks, microbatches, chunks, group)
    plan = schedules.load("interleaved_1f1b")(*shape, overlap=True)
    plain = module.peak_activations(*shape)
    held = module.peak_activations(*shape, overlap=True)
    assert held == [min(peak + 1, microbatches * chunks) for peak in plain]
    for times, pair, policy in product(TIMES, ("serial", "fused"), ("direction", "pair")):
        seconds = dict(zip("FIW", times, strict=True))
        ran = figures(plan, run_plan(plan, seconds, Policy(policy), pair))
        assert ran["peak_activations"] == held
        claim = module.bubble(ranks, microbatches, chunks, *times, pair)
        assert max(ran["idle_s"]) == claim, (times, pair, policy)


def test_no_bubble_is_claimed_for_fused_pairs_that_save_time() -> None:
    """Rank 0, idle for nothing, then sets the pace: with FB = 3, 18 s of rank 1 and not 12."""
    module = claims("interleaved_1f1b")
    times, plan = (4.0, 1.0, 7.0), schedules.load("interleaved_1f1b")(2, 10, overlap=True)
    seconds = dict(zip("FIW", times, strict=True)) | {"FB": 3.0}
    assert figures(plan, run_plan(plan, seconds, pair="fused"))["idle_s"] == [0, 18]
    assert module.bubble(2, 10, 2, *times, "fused", 3.0) is None
    assert module.bubble(2, 10, 2, *times, "fused", 12.0) == 12


def test_bubbles_are_claimed_where_they_should_be() -> None:
    """4 ranks, 8 microbatches, by hand; None is the answer for unknown only."""
    claimed = {name: claims(name).bubble(4, 8, 2, *TIMES[0]) for name in NAMES}
    whole = ("gpipe", "one_f_one_b", "interleaved_1f1b", "looped_bfs", "pipedream")
    assert {name: value for name, value in claimed.items() if value is not None} == {
        **dict.fromkeys(whole, 3 * 12),
        **dict.fromkeys(("zb_h1", "zb_1p", "interleaved_zero_bubble", "dualpipe_v"), 3 * 6),
        "zb_h2": 3 * 5,
        "dualpipe": 1 * 6,
    }
    searched = [name for name, value in claimed.items() if value is None]
    equal = {name: claims(name).bubble(4, 8, 2, 5, 5, 5) for name in searched}
    assert equal == {"zb_2p": 15, "zb_v": 15, "v_half": 25, "v_min": 55, "one_f_one_b_v": 75}
