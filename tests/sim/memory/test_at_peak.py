"""What is live at a peak and why: timelines by hand, closed forms, check against run."""

from __future__ import annotations

from typing import Any

import pytest

from sim.engine import simulate
from sim.graph import Builder, Fixed, Memory
from sim.machine.hardware import ideal
from sim.memory.at_peak import Live, at_peak, in_flight, nets
from sim.memory.causes import Decisions, causes, figures
from sim.memory.curve import peaks
from sim.runs.check import check
from sim.runs.run import run
from sim.timeline import Timeline
from tests.recipes import DEEP as MODEL
from tests.recipes import parsed


def recipe(
    schedule: str = "one_f_one_b", gpus: int = 4, m: int = 8, hidden: int = 256, **way: Any
) -> Any:
    dp = way.get("dp", gpus // way.get("pp", 1))
    given = {key: way.pop(key) for key in ("fold", "host") if key in way}
    own = {"schedule": {"name": schedule}, "simulation": given, "gpus": gpus}
    return parsed(MODEL | {"hidden": hidden}, m * dp, **own, **way)


def of_memory(of: Any) -> list[dict[str, Any]]:
    memory: list[dict[str, Any]] = run(of).summary["memory"]
    return memory


def by_hand() -> Timeline:
    """Two forwards of 10 B and 12 B, an I that gives back half of the first, a W to come, and a
    buffer of 5 B that another layer gives back, with 1 B left, before the peak of 2 + 5 + 12 + 8.
    """
    b = Builder()

    def add(name: str, *memory: tuple[str, float, str], **where: Any) -> None:
        b.add(name, 0, "compute", Fixed(1.0), memory=[Memory(*one) for one in memory], **where)

    add("f", ("activations", 10.0, "start"), phase="F", stage=0, microbatch=0, layer=0)
    add("f", ("activations", 12.0, "start"), phase="F", stage=0, microbatch=1, layer=0)
    add("i", ("activations", -5.0, "end"), phase="I", stage=0, microbatch=0, layer=0)
    add("copy", ("buffer", 5.0, "start"), layer=2)
    add("send", ("buffer", -4.0, "end"), layer=3)
    add("top", ("scratch", 8.0, "start"), ("scratch", -8.0, "end"), layer=4)
    add("w", ("activations", -5.0, "end"), phase="W", stage=0, microbatch=0, layer=0)
    graph = b.graph()
    return simulate(graph, ideal(graph))


def test_live_rows_by_hand() -> None:
    """10 + 12, less 5, and 5 of the buffer before the send ends: 22 at the copy; at the top
    17 + 1 + 8 = 26, the peak."""
    (of,) = at_peak(by_hand())
    assert peaks(by_hand())[0].peak_bytes == 26.0
    assert of.op == "top (layer 4)"
    assert of.live == (
        Live("activations", 0, 1, 0, 12.0),
        Live("scratch", -1, -1, 4, 8.0),
        Live("activations", 0, 0, 0, 5.0),
        Live("buffer", -1, -1, -1, 1.0),  # one layer took what the other gave back
    )
    assert of.deferred == {(0, 0)}
    assert in_flight(of) == {0: [1]}
    said = list(causes(of, Decisions("zb_1p", 2, 0, 4)))
    assert said == [
        "stage 0 holds activations of 1 microbatch (1; 12 B): its backward runs now or comes next",
        "stage 0 holds what W needs of microbatch 0 (5 B): zb_1p defers W, whose I is over",
    ]


def test_places_that_give_back_what_others_took_are_joined() -> None:
    assert nets({("a", 0, 0, 1): 4.0, ("a", 0, 1, 1): -1.0}) == (Live("a", 0, -1, -1, 3.0),)
    assert nets({("a", 0, 0, 1): 4.0, ("a", 1, 0, 1): -4.0}) == ()


@pytest.mark.parametrize("m", [3, 8])
def test_1f1b_holds_as_many_microbatches_as_ranks_are_behind(m: int) -> None:
    """min(p - rank, m), as Narayanan et al. 2021 have it; the sentence says so."""
    memory = of_memory(recipe(pp=4, m=m))
    for q, entry in enumerate(memory):
        live = {row["microbatch"] for row in full(entry)}
        expected = min(4 - q, m)
        assert live == {*range(expected)}
        said = entry["at_peak"]["causes"][0]
        assert said.startswith(f"stage {q} holds activations of {expected} microbatch")
        if 1 < expected == 4 - q:
            assert said.endswith(
                f"p - rank = 4 - {q} = {expected} forwards before the first backward"
            )
        elif expected == m:
            assert said.endswith("1F1B runs all 3 forwards before the first backward")


def full(entry: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in entry["at_peak"]["live"] if row["category"] == "activations"]


def test_zb_2p_holds_2p_minus_1_on_the_first_rank() -> None:
    """Qi et al. 2023: so many forwards before the first backward; ZB-H1 holds p and defers W."""
    wide = recipe("zb_2p", hidden=4096, pp=4)  # its kernels are much longer than their launches
    first = of_memory(wide)[0]["at_peak"]["causes"][0]
    assert first.startswith("stage 0 holds activations of 7 microbatches (1 to 7;")
    assert first.endswith("2 (p - rank) - 1 = 2 (4 - 0) - 1 = 7 forwards before the first backward")
    last = of_memory(recipe("zb_h1", pp=4))[3]["at_peak"]["causes"]
    assert "needs of microbatches 0 to 2" in last[1]
    assert last[1].endswith("zb_h1 defers W, whose I is over")
    assert "as two copies while they are cast" in last[2]


def test_gathered_parameters_are_named_with_what_gathers_them() -> None:
    fsdp = {"kind": "fsdp2", "prefetch": 2}
    (entry,) = of_memory(recipe(fsdp=fsdp, m=1))
    said = next(one for one in entry["at_peak"]["causes"] if one.startswith("gathered"))
    assert said.startswith("gathered parameters of layers 5 to 7 and the root unit")
    assert said.endswith("by prefetch depth 2")


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {"pp": 4},
        {"pp": 4, "schedule": "gpipe"},
        {"pp": 4, "schedule": "zb_h1"},
        {
            "pp": 4, "schedule": "zb_h1", "m": 4, "host": True, "p2p": "batched",
        },  # sends launched late
        {"pp": 2, "tp": 2},
        {"fsdp": {"kind": "fsdp2", "prefetch": 2}, "m": 1},
    ],
    ids=str,
)  # fmt: skip
def test_check_says_what_run_says(keys: dict[str, Any]) -> None:
    """One goes by the order of ops, the other by their times."""
    ran, said = of_memory(recipe(**keys)), check(recipe(**keys))["memory"]
    assert [entry["at_peak"] for entry in ran] == [entry["at_peak"] for entry in said]


def test_folded_and_unfolded_agree() -> None:
    folded = of_memory(recipe(gpus=8, pp=2, dp=2, tp=2))
    every = of_memory(recipe(gpus=8, pp=2, dp=2, tp=2, fold="none"))
    assert len(folded) < len(every)
    said = {entry["at_peak"]["causes"][0]: entry["at_peak"]["live"] for entry in every}
    assert said == {entry["at_peak"]["causes"][0]: entry["at_peak"]["live"] for entry in folded}


def test_nothing_that_comes_and_goes() -> None:
    b = Builder()
    b.add("a", 0, "compute", Fixed(1.0))
    graph = b.graph()
    (of,) = at_peak(simulate(graph, ideal(graph)))
    assert figures(of, Decisions("gpipe", 1, 0, 1)) == {"op": "", "live": [], "causes": []}
