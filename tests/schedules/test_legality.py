"""Which plans can run: each fault in one sentence, and the engine as the judge of deadlocks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import schedules
from schedules import Pair, Plan, Step
from schedules.from_csv import from_csv
from sim.builder.strategies.exchange import Policy
from sim.engine import DeadlockError
from sim.runs.schedule_run import run_plan, simulate_plan
from traces import schedule_csv

TIMES = {"F": 5.0, "I": 4.0, "W": 3.0}
SHAPES = [(2, 4), (4, 8), (4, 16)]
BATCHED = {"gpipe", "one_f_one_b", "pipedream", "zb_1p", "zb_h1"}  # one stage per rank, in step


def rows(*lines: str) -> Plan:
    return schedule_csv.read("\n".join(lines))


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["0F0,0B0,0F0", "1F0,1B0"],
         "rank 0, position 2: 0F0 is already run at rank 0, position 0"),
        (["0F0,0B0", "1F0,0F0,1B0"],
         "rank 1, position 1: 0F0 is already run at rank 0, position 0"),
        (["0F0", "1F0,1B0"], "rank 0, position 0: 0F0 has no backward; 0B0, or 0I0 and 0W0, must"),
        (["0F0,0I0", "1F0,1B0"], "rank 0, position 1: 0I0 is half a backward; 0B0, or 0I0 and 0W0"),
        (["0F0,0B0,0W0", "1F0,1B0"],
         "rank 0, position 2: 0W0 is run beside 0B0, rank 0, position 1"),
        (["0B0", "1F0,1B0"], "rank 0, position 0: 0B0 has no forward; 0F0 must come before it"),
        (["0F0,0W0,0I0"],
         "rank 0, position 1: 0W0 needs 0I0, which comes later, rank 0, position 2"),
        (["0B0,0F0"], "rank 0, position 0: 0B0 needs 0F0, which comes later, rank 0, position 1"),
        (["0F0,1B0", "1F0,0B0"], "rank 1, position 1: 0B0 is on another rank than 0F0, rank 0"),
        (["0F0,0B0", "2F0,2B0"], "rank 1, position 0: 2F0, but no rank runs stage 1"),
        (["0F0,0F2,0B0,0B2"], "rank 0, position 1: 0F2, but no rank runs microbatch 1"),
        (["0F0,0F1,0B0,0B1", "1F0,1B0"], "rank 1, position 0: 1F0, but no rank runs 1F1"),
        (["0F0,1F1,0B0,1B1", "1F0,0F1,1B0,0B1", "2F0,2F1,2B0,2B1"],
         "rank 1, position 1: 0F1 is of stage 0, which rank 0 runs too, as in rank 0, position"),
        (["0F0,0B0", "", "1F0,1B0"], "rank 1 runs no step"),
        ([], "the plan has no ranks"),
        (["0F0,(0F1;0B1)OVERLAP_F_B,0B0"],
         "rank 0, position 1: (0F1;0B1)OVERLAP_F_B overlaps a backward with the forward"),
    ],
)  # fmt: skip
def test_a_fault_is_one_sentence(lines: list[str], sentence: str) -> None:
    """With rank, position and step."""
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        schedules.require_legal(rows(*lines))
    assert sentence in str(error.value)
    with pytest.raises(ValueError, match=r"^[^\n]*$"):
        simulate_plan(rows(*lines), TIMES)


def test_steps_that_torch_does_not_know_are_refused() -> None:
    for step in (Step(0, "X", 0), Step(-1, "F", 0), Step(0, "FB", 0), Step(0, "F", -1)):
        with pytest.raises(ValueError, match=r"rank 0, position 0: .* is no step"):
            schedules.require_legal([[step]])
    pair = Pair(Step(0, "F", 0), Step(0, "I", 1))
    with pytest.raises(ValueError, match="is no forward and whole backward"):
        schedules.require_legal([[pair]])
    for policy, how in (("both", "serial"), ("pair", "shared")):
        with pytest.raises(ValueError, match="there are"):
            schedules.require_legal([[Step(0, "F", 0), Step(0, "B", 0)]], policy, how)


def test_a_cycle_is_told_from_a_step_back_to_itself() -> None:
    """1F1B whose first rank wants a gradient before it has sent what the second rank wants."""
    plan = rows("0F0,0B0,0F1,0B1", "1F0,1F1,1B0,1B1")
    for policy in ("direction", "pair"):
        with pytest.raises(ValueError, match="deadlock") as error:
            schedules.require_legal(plan, policy)
        assert str(error.value) == (
            "deadlock: rank 0, position 1: 0B0 waits for rank 1, position 2: 1B0, which comes "
            "after rank 1, position 1: 1F1, which waits for rank 0, position 2: 0F1, which comes "
            "after rank 0, position 1: 0B0"
        )


def test_batched_exchanges_that_do_not_meet_are_told() -> None:
    """Rank 1 hands over 1B0 where it takes 0F1. Rank 0 takes 1B0 two exchanges later, behind the
    one that hands over 0F2, which rank 1 takes only after that."""
    lines = ["0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3", "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3"]
    plan = rows(*lines)
    for policy in ("direction", "pair"):
        schedules.require_legal(plan, policy)
        run_plan(plan, TIMES, Policy(policy))
    with pytest.raises(ValueError, match=r"^deadlock: [^\n]*$") as error:
        schedules.require_legal(plan, "batched")
    assert "rank 1's exchange before position 2 (1F1)" in str(error.value)
    assert "rank 0's exchange before position 4 (0B0)" in str(error.value)
    with pytest.raises(DeadlockError):
        run_plan(plan, TIMES, Policy("batched"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "given"),
    [*((name, {}) for name in schedules.names()), ("interleaved_1f1b", {"overlap": True})],
)
@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_no_schedule_of_ours_stops(name: str, given: dict[str, bool], p: int, m: int) -> None:
    """Under direction and pair; in batched exchanges, those whose ranks move in step."""
    plan = schedules.load(name)(p, m, **given)
    for pair in ("serial", "fused"):
        for policy in ("direction", "pair", "batched"):
            if policy != "batched" or name in BATCHED:
                schedules.require_legal(plan, policy, pair)
                run_plan(plan, TIMES, Policy(policy), pair)


def shaken(plan: Plan, rng: random.Random) -> Plan:
    """The plan with a few neighbours of a rank exchanged."""
    plan = [list(items) for items in plan]
    for _ in range(rng.randint(1, 4)):
        items = plan[rng.randrange(len(plan))]
        k = rng.randrange(len(items) - 1)
        items[k], items[k + 1] = items[k + 1], items[k]
    return plan


@pytest.mark.slow
def test_the_engine_stops_exactly_where_a_deadlock_is_foretold() -> None:
    """Orders shaken at random, under each policy, pairs serial and fused."""
    rng = random.Random(3)
    seen = {"runs": 0, "stops": 0}
    for name, p, m in [
        ("one_f_one_b", 3, 4),
        ("interleaved_1f1b", 2, 4),
        ("looped_bfs", 2, 2),
        ("dualpipe", 4, 8),
        ("dualpipe_v", 2, 4),
    ]:
        for _ in range(40):
            plan = shaken(schedules.load(name)(p, m), rng)
            policy = rng.choice(["direction", "pair", "batched"])
            pair = rng.choice(["serial", "fused"])
            try:
                schedules.require_legal(plan, policy, pair)
            except ValueError as error:
                if str(error).startswith("deadlock"):
                    with pytest.raises(DeadlockError):
                        run_plan(plan, TIMES, Policy(policy), pair)
                    seen["stops"] += 1
                continue
            run_plan(plan, TIMES, Policy(policy), pair)
            seen["runs"] += 1
    assert min(seen.values()) >= 20, seen


def test_two_directions_share_all_ranks_or_none() -> None:
    """DualPipe's stages stand on a rank and on the one opposite, and only there."""
    plan = schedules.load("dualpipe")(4, 8)
    schedules.require_legal(plan)
    plan[0], plan[1] = plan[1], plan[0]
    with pytest.raises(ValueError, match="a stage is on one rank"):
        schedules.require_legal(plan)


DEFERRED = {  # whose receives are put off by torch, and then do not stand as their sends do
    "direction": {"DualPipeV_P4_M8_v2", "ZBVZeroBubble_P4_M8_v2"},
    "pair": {"DualPipeV_P4_M8_v2", "ZBVZeroBubble_P4_M8_v2", "Interleaved1F1B_P4_M8_v2",
        "Interleaved1F1B_P4_M8_v3", "InterleavedZeroBubble_P4_M8_v2",
        "InterleavedZeroBubble_P4_M8_v3"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["direction", "pair"])
def test_receives_in_another_order_than_sends_are_reported(shared: Path, policy: str) -> None:
    """Of all orders with messages that torch wrote, these and no others."""
    files = sorted((shared / "orders/torch").glob("*.comms*.csv"))
    assert len(files) >= 58
    for file in files:
        deferred = file.name.split(".")[1] == "comms_deferred_recv"
        if deferred and file.name.split(".")[0] in DEFERRED[policy]:
            with pytest.raises(ValueError, match=r"^[^\n]*one order$") as error:
                from_csv(file, policy)
            assert f"(p2p {policy}): rank 0, position" in str(error.value)
        else:
            from_csv(file, policy)
    with pytest.raises(ValueError, match=r"ranks 0 → 1, message 6 .* 0SEND_F6 .* 6RECV_B0"):
        from_csv(shared / "orders/torch/ZBVZeroBubble_P4_M8_v2.comms_deferred_recv.csv")


MESSAGES = ("0F0,0SEND_F0,0RECV_B0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ((",0SEND_F0", ""), "rank 1, position 0: 1RECV_F0 has no other end; no rank has 0SEND_F0"),
        ((",1SEND_B0", ",1SEND_B0,1SEND_B0"), "rank 1, position 4: 1SEND_B0 is there twice, first"),
        (("0F0,0SEND_F0", "0SEND_F0,0F0"),
         "rank 0, position 0: 0SEND_F0 comes before its step 0F0"),
        (("1RECV_F0,1F0", "1F0,1RECV_F0"), "rank 1, position 1: 1RECV_F0 comes after its step 1F0"),
        (("0SEND_F0", "1SEND_F0"), "rank 0, position 1: 1SEND_F0 belongs to no step of this rank"),
        (("0SEND_F0", "0SEND_F3"), "rank 0, position 1: 0SEND_F3 belongs to no step of this rank"),
        (("0B0", "0B0,0SEND_B0"), "rank 0, position 4: 0SEND_B0 has no other end; no rank has -1"),
    ],
)  # fmt: skip
def test_messages_that_do_not_fit_are_one_sentence(
    tmp_path: Path, change: tuple[str, str], sentence: str
) -> None:
    file = tmp_path / "order.csv"
    file.write_text("\n".join(MESSAGES))
    assert from_csv(file) == rows(*MESSAGES)
    file.write_text("\n".join(MESSAGES).replace(*change))
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        from_csv(file)
    assert sentence in str(error.value)


def test_a_missing_message_and_one_that_stays_are_told(tmp_path: Path) -> None:
    file = tmp_path / "order.csv"
    file.write_text("0F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0")
    with pytest.raises(ValueError, match="rank 1, position 0: 1F0 needs 1RECV_F0 before it"):
        from_csv(file)
    file.write_text("0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0")
    with pytest.raises(ValueError, match="rank 0, position 1: 0SEND_F0 stays on its rank"):
        from_csv(file)
    file.write_text("\n".join(MESSAGES))
    with pytest.raises(ValueError, match="policy direction or pair"):
        from_csv(file, "batched")


def test_a_pair_has_one_order_and_each_direction_its_own(tmp_path: Path) -> None:
    """Rank 0 begins to take 1B0 before it sends 0F1, and rank 1 sends it after it begins to take
    that: all right on two streams, and not on one."""
    file = tmp_path / "order.csv"
    file.write_text(
        "0F0,0SEND_F0,0RECV_B0,0F1,0SEND_F1,0B0,0RECV_B1,0B1\n"
        "1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1SEND_B1"
    )
    from_csv(file)
    with pytest.raises(ValueError, match="ranks 0 and 1, message 1 of their stream"):
        from_csv(file, "pair")


def test_messages_in_one_order_can_still_stop(tmp_path: Path) -> None:
    """A V on two ranks: 0F1 is sent only behind 3B0, which stands behind 3F1, which needs it."""
    file = tmp_path / "order.csv"
    first = "0F0,0SEND_F0,0F1,3RECV_F0,3F0,3RECV_F1,3F1,3B0,3SEND_B0,0SEND_F1,"
    second = "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,1RECV_F1,1F1,2F1,2SEND_F1,2B0,"
    file.write_text(
        f"{first}3B1,3SEND_B1,0RECV_B0,0B0,0RECV_B1,0B1\n"
        f"{second}1B0,1SEND_B0,2RECV_B1,2B1,1B1,1SEND_B1"
    )
    with pytest.raises(ValueError, match=r"^[^\n]*: deadlock: [^\n]*$") as error:
        from_csv(file)
    for word in ("rank 0, position 9: 0SEND_F1", "rank 1, position 5: 1RECV_F1"):
        assert word in str(error.value)
