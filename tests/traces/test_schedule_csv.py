"""torch's CSV, read and written: byte for byte as torch writes it, and 20 broken ones refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import schedules
from schedules.from_csv import from_csv
from sim.runs.schedule_run import simulate_plan
from traces import schedule_csv

OURS = {
    "GPipe": "gpipe",
    "1F1B-executed": "one_f_one_b",
    "Interleaved1F1B": "interleaved_1f1b",
    "LoopedBFS": "looped_bfs",
    "DualPipeV": "dualpipe_v",
}


@pytest.mark.slow
def test_what_torch_writes_is_read_and_written_again(shared: Path) -> None:
    """With messages and FSDP's actions to the byte, in torch's order of both ends; without, but for
    idle slots and torch's own mark of reductions."""
    seen = 0
    for file in sorted((shared / "orders/torch").glob("*.comms.csv")):
        text = file.read_bytes().decode()
        plan = schedule_csv.read(text)
        assert schedule_csv.text(plan, communication=True) == text, file.name
        steps = file.with_name(file.name.replace("comms", "compute"))
        assert from_csv(steps) == from_csv(file) == plan
        lines = steps.read_text().splitlines()
        cells = [[c for c in line.split(",") if c and "GRAD" not in c] for line in lines]
        assert schedule_csv.text(plan) == "".join(",".join(row) + "\r\n" for row in cells)
        seen += 1
    assert seen >= 50


def test_ours_with_messages_are_torchs(shared: Path) -> None:
    """From our own functions."""
    seen = 0
    for file in sorted((shared / "orders/torch").glob("*.comms.csv")):
        title, p, m, v = file.name.split(".")[0].split("_")
        if name := OURS.get(title):
            given = {"chunks": int(v[1:])} if "chunks" in schedules.options(name) else {}
            plan = schedules.load(name)(int(p[1:]), int(m[1:]), **given)
            assert schedule_csv.text(plan, True) == file.read_bytes().decode(), file.name
            seen += 1
    assert seen >= 30


def test_zero_bubble_orders_as_csv_are_read(shared: Path) -> None:
    files = sorted((shared / "orders/csv_from_zb").glob("*.csv"))
    assert len(files) >= 6
    for file in files:
        plan = from_csv(file)
        assert schedule_csv.text(plan).split() == file.read_text().split()


@pytest.mark.parametrize("name", schedules.names())
def test_every_schedule_of_ours_comes_back_from_its_file(name: str, tmp_path: Path) -> None:
    """Without messages and, where each stage is on one rank, with them."""
    plan = schedules.load(name)(4, 8)
    file = tmp_path / "order.csv"
    file.write_bytes(schedule_csv.text(plan).encode())
    assert from_csv(file) == plan
    if name == "dualpipe":
        with pytest.raises(ValueError, match="stage 1 is run by rank 1 and by rank 2"):
            schedule_csv.text(plan, communication=True)
        return
    file.write_bytes(schedule_csv.text(plan, communication=True).encode())
    for policy in ("direction", "pair"):
        assert from_csv(file, policy) == plan


def test_an_order_by_hand_is_read_and_run(tmp_path: Path) -> None:
    """Idle slots, spaces, FSDP's actions, a byte order mark, blank lines at the end."""
    file = tmp_path / "order.csv"
    file.write_text("\ufeff0UNSHARD,0F0,, 0F1 ,0B0,0B1,0REDUCE_GRAD\n1F0,1B0,,1F1,1B1,1RESHARD\n\n")
    plan = from_csv(file)
    assert plan == schedules.load("one_f_one_b")(2, 2)
    assert simulate_plan(plan, {"F": 5.0, "I": 4.0, "W": 3.0})["makespan_s"] == 36


def test_fsdp_gathers_the_next_three_stages_and_does_not_part_a_pair() -> None:
    """On one rank: before 0F1 come 0, 1 and both of the pair. As torch's own passes give it."""
    plan = schedule_csv.read(
        "0F0,1F0,2F0,3F0,0F1,1F1,(2F1;3B0)OVERLAP_F_B,3F1,2B0,1B0,0B0,3B1,2B1,1B1,0B1"
    )
    row = schedule_csv.text(plan, communication=True)
    assert row.startswith(
        "0UNSHARD,1UNSHARD,2UNSHARD,0F0,0RESHARD,3UNSHARD,1F0,1RESHARD,0UNSHARD,2F0,"
        "2RESHARD,1UNSHARD,3F0,2UNSHARD,0F1,0RESHARD,1F1,(2F1;3B0)OVERLAP_F_B,"
    )
    assert row.endswith(
        "3B1,3REDUCE_GRAD,3RESHARD,0UNSHARD,2B1,2REDUCE_GRAD,2RESHARD,1B1,1REDUCE_GRAD,1RESHARD,"
        "0B1,0REDUCE_GRAD,0RESHARD\r\n"
    )


BROKEN = {
    "": "the file has no steps",
    "rank,step\n0F0,0B0": "line 1, cell 1: 'rank' is no step",
    "0F0,0B0\n1F0;1B0": "line 2, cell 1: '1F0;1B0' is no step",
    "0F0,0B0,0X0": "line 1, cell 3: '0X0' is no step",
    "0F0,0B0x": "line 1, cell 2: '0B0x' is no step",
    "0F0,0B": "line 1, cell 2: '0B' is no step",
    "F0,0B0": "line 1, cell 1: 'F0' is no step",
    "-1F0,0B0": "line 1, cell 1: '-1F0' is no step",
    "0f0,0b0": "line 1, cell 1: '0f0' is no step",
    f"{'9' * 5000}F0": "is no step",
    "0F0,(0F1;0B0)OVERLAP_B_F": "line 1, cell 2: '(0F1;0B0)OVERLAP_B_F' is no step",
    "0F0,(0B0;0F1)OVERLAP_F_B,0B1": "line 1, cell 2: '(0B0;0F1)OVERLAP_F_B' overlaps something",
    "0F0,(0F1;0I0)OVERLAP_F_B": "overlaps something other than a forward and a whole backward",
    "0F0,(0F1)OVERLAP_F_B,0B0": "line 1, cell 2: '(0F1)OVERLAP_F_B' is no step",
    '0F0,"0B0': "this is no CSV",
    "0F0,0B0\n\n1F0,1B0": "rank 1 runs no step",
    "0F0,0B0\n,,,": "rank 1 runs no step",
    "0F0,0F0,0B0": "rank 0, position 1: 0F0 is already run at rank 0, position 0",
    "0F0,0B0,0B0": "rank 0, position 2: 0B0 is already run at rank 0, position 1",
    "0F0,0F1,0B0": "rank 0, position 1: 0F1 has no backward",
    "0F0,0W0,0I0": "rank 0, position 1: 0W0 needs 0I0",
    "0F999999999,0B999999999": "rank 0, position 0: 0F999999999, but no rank runs microbatch 0",
    "0F0,0B0\n0F1,0B1": "rank 1, position 0: 0F1 is of stage 0, which rank 0 runs too",
    "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1": "deadlock: rank 0, position 1: 0B0 waits for rank 1",
    "0F0,0SEND_F0,0B0\n1F0,1B0": "rank 0, position 1: 0SEND_F0 has no other end",
}


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: text[:30])
def test_a_broken_file_is_one_sentence(text: str, tmp_path: Path) -> None:
    """That names the file and what is wrong in it."""
    file = tmp_path / "order.csv"
    file.write_bytes(text.encode())
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        from_csv(file)
    assert str(error.value).startswith(f"{file}: ")
    assert BROKEN[text] in str(error.value)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    """None there, a folder, bytes that are no text, a policy that is none."""
    binary, order = tmp_path / "binary.csv", tmp_path / "order.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    order.write_text("0F0,0B0")
    for path, policy, sentence in [
        (tmp_path / "none.csv", "direction", "No such file or directory"),
        (tmp_path, "direction", "Is a directory"),
        (binary, "direction", "it is not text in UTF-8"),
        (order, "both", "no policy 'both'; there are direction, pair, batched"),
    ]:
        with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
            from_csv(path, policy)
        assert sentence in str(error.value)


def test_what_takes_a_file_is_no_schedule_of_a_shape() -> None:
    """It is found by its name, but not listed."""
    assert schedules.load("from_csv") is from_csv
    assert "from_csv" not in schedules.names()


def test_a_file_that_defines_no_schedule_is_none(tmp_path, monkeypatch) -> None:
    """Helpers, functions of something else and folders are no schedules; one file is one."""
    files = {
        "helper": "def order(ranks, microbatches): ...",
        "a_cost": "def a_cost(seconds, ranks): ...",
        "swapped": "def swapped(microbatches, ranks): ...",
        "folder/__init__": "def other(ranks, microbatches): ...",
        "mine": "def mine(ranks, microbatches, ahead=1): ...",
    }
    (tmp_path / "folder").mkdir()
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    before = schedules.names()
    monkeypatch.setattr(schedules, "__path__", [*schedules.__path__, str(tmp_path)])
    assert schedules.names() == sorted([*before, "mine"])
    with pytest.raises(ValueError, match="no schedule 'helper'"):
        schedules.load("helper")
    why = r"schedules/swapped\.py is no schedule: .* must be ranks and microbatches$"
    with pytest.raises(ValueError, match=why):
        schedules.load("swapped")
    assert re.fullmatch(why, schedules.unknown("swapped", "or all"))
