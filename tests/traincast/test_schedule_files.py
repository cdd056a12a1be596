"""``traincast schedule``: orders from files, options, policies, the bubble in both counts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import schedules
from schedules import from_csv
from sim.builder.strategies.exchange import Policy
from sim.runs.schedule_run import simulate_plan
from traces import schedule_csv
from traincast.commands.parts import orders

pytestmark = pytest.mark.slow

Call = Callable[..., tuple[int, str, str]]
SHAPE = ("--ranks", 4, "--microbatches", 8)
TIMES = ("--times", "F=5,I=4,W=3,p2p=0.25")


@pytest.mark.parametrize("name", ["one_f_one_b", "interleaved_1f1b", "zb_v", "dualpipe"])
@pytest.mark.parametrize("p2p", ["direction", "pair"])
def test_a_written_order_runs_as_its_schedule_does(
    name: str, p2p: str, tmp_path: Path, traincast: Call
) -> None:
    """Figure by figure, to the bit, without any shape given; and it may be given."""
    file = tmp_path / "order.csv"
    asked = ("schedule", name, *SHAPE, *TIMES, "--p2p", p2p, "--json")
    code, ours, _ = traincast(*asked, "--csv", file)
    assert code == 0
    line = ("schedule", file, *TIMES, "--p2p", p2p, "--json")
    assert traincast(*line)[:2] == (0, ours)
    assert traincast(*line, *SHAPE)[:2] == (0, ours)


def test_orders_of_torch_run_with_and_without_their_messages(shared: Path, traincast: Call) -> None:
    for kind in ("compute", "comms"):
        file = shared / f"orders/torch/ZBVZeroBubble_P4_M8_v2.{kind}.csv"
        code, out, _ = traincast("schedule", file, "--json")
        assert code == 0
        assert json.loads(out)["makespan_s"] == 51  # as the data beside them say
    assert "ZBVZeroBubble_P4_M8_v2.comms.csv: makespan 51 s" in traincast("schedule", file)[1]


def test_a_file_of_any_name_is_read_but_a_schedule_is_what_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traincast: Call
) -> None:
    """Its name is shown as it is, whatever rich or matplotlib would make of it."""
    monkeypatch.chdir(tmp_path)
    for name in ("order", "gpipe", "[x] $\\x$.CSV"):
        Path(name).write_text("0F0,0B0")
    assert traincast("schedule", "order", "--json")[0] == 0
    code, out, _ = traincast("schedule", "[x] $\\x$.CSV", "--plot", "x.png")
    assert (code, out.startswith("[x] $\\x$.CSV: makespan 3 s")) == (0, True)
    assert traincast("schedule", "gpipe")[0] == 2


def test_options_reach_the_schedule(traincast: Call) -> None:
    """Megatron's larger group holds more; more memory shortens the bubble; exact is exact."""

    def figures(name: str, *more: object) -> dict[str, list[float]]:
        code, out, _ = traincast("schedule", name, *SHAPE, *more, "--json")
        assert code == 0
        return dict(json.loads(out))

    wide = figures("interleaved_1f1b", "--option", "group=8")
    assert wide["peak_activations"] == [15, 13, 11, 9]  # Megatron's own formula
    assert figures("interleaved_1f1b", "--option", "group=4")["peak_activations"] == [11, 9, 7, 5]
    more = figures("zb_1p", "--option", "memory=6", "--option", "exact=false")
    assert max(more["peak_activations"]) == 6
    assert more["orders"] == [
        [str(step) for step in steps]
        for steps in schedules.load("zb_1p")(4, 8, memory=6, F=1, I=1, W=1, p2p=0)
    ]
    assert figures("pipedream", "--option", "batch=8")["makespan_s"] == (8 + 4 - 1) * 3


def test_the_policy_reaches_the_run(traincast: Call) -> None:
    """A batched exchange holds both ranks up, so 1F1B takes longer with it."""
    took = {}
    for p2p in orders.POLICIES:
        out = traincast("schedule", "one_f_one_b", *SHAPE, *TIMES, "--p2p", p2p, "--json")[1]
        plan = schedules.load("one_f_one_b")(4, 8)
        times = {"F": 5.0, "I": 4.0, "W": 3.0, "p2p": 0.25}
        took[p2p] = json.loads(out)["makespan_s"]
        assert took[p2p] == simulate_plan(plan, times, orders.policy("", p2p))["makespan_s"]
    assert took["batched"] > took["direction"]
    line = ("schedule", "interleaved_1f1b", *SHAPE, "--p2p", "batched", "--json")
    assert traincast(*line)[0] == 0  # Megatron-LM's paired exchanges, as in recipes


def test_what_only_the_engine_finds_stuck_is_one_sentence() -> None:
    """Megatron-LM's paired exchanges, which no legality check knows, under another's order."""
    plan = schedules.load("zb_v")(4, 8)
    with pytest.raises(ValueError, match=r"^deadlock: [^\n]*$"):
        simulate_plan(plan, {"F": 1.0, "I": 1.0, "W": 1.0}, Policy("batched", paired=True))


def test_the_bubble_has_two_counts(traincast: Call) -> None:
    """By hand: stages of F 5 s and B 7 s, hops of 2 s, stages 0 and 2 on rank 0, 1 on rank 1.

    Rank 0 runs from 0 to 44 and is busy for 24 s; rank 1 runs from 7 to 35, busy for 12 s.
    """
    plan = schedule_csv.read("0F0,2F0,2B0,0B0\n1F0,1B0")
    ran = simulate_plan(plan, {"F": 5.0, "I": 4.0, "W": 3.0, "p2p": 2.0})
    assert (ran["makespan_s"], ran["longest_span_s"], ran["busy_s"]) == (44, 44, [24, 12])
    assert ran["bubble_rate_makespan"] == 32 / 44  # of rank 1
    assert ran["bubble_rate_longest_span"] == 20 / 44  # of rank 0
    line = ("schedule", "zb_v", "--ranks", 4, "--microbatches", 8)
    found = json.loads(traincast(*line, "--json")[1])
    assert found["bubble_rate_makespan"] == 3 / 51  # a lead-in of p - 1 on the last rank
    assert found["bubble_rate_longest_span"] == 0
    assert "bubble: 5.88% of the makespan" in traincast(*line)[1]


GOOD = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1"
SWAPPED = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
    "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1"
)
STUCK = "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1"
FILES: dict[str, str | bytes] = {
    "empty": "",
    "binary": b"\xff\xfe\x00\x01",
    "row": "0F0,0F1,0B0,0B1\n2F0,2B0,2F1,2B1",
    "cell": "0F0,0F1,0X0,0B1\n1F0,1B0,1F1,1B1",
    "twice": "0F0,0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1",
    "no_backward": "0F0,0F1,0B0\n1F0,1B0,1F1,1B1",
    "no_forward": "0F0,0B0,0B1\n1F0,1B0,1F1,1B1",
    "w_first": "0F0,0F1,0W0,0I0,0B1\n1F0,1B0,1F1,1B1",
    "b_and_i": "0F0,0F1,0B0,0I0,0B1\n1F0,1B0,1F1,1B1",
    "two_ranks": "0F0,0F1,0B0,0B1,1F0,1B0\n1F1,1B1",
    "gap": "0F0,0F2,0B0,0B2\n1F0,1B0,1F2,1B2",
    "swapped": SWAPPED,
    "stuck": STUCK,
    "good": GOOD,
    "quote": '0F0,0F1,0B0,0B1\n1F0,"1B0,1F1,1B1\n2F0',
}  # fmt: skip
SIZE = ["--ranks", "4", "--microbatches", "8"]
NAMED = ["gpipe", "--ranks", "4", "--microbatches", "8"]
BROKEN = [
    (["empty.csv"], "empty.csv: the file has no steps"),
    (["none.csv"], "cannot read the order none.csv: No such file or directory"),
    (["."], "cannot read the order .: Is a directory"),
    (["pipe.csv"], "cannot read the order pipe.csv: it is a pipe or a device, not a file"),
    (["loop.csv"], "cannot read the order loop.csv: Too many levels of symbolic links"),
    (["good.csv", "--csv", "loop.csv"], "cannot write loop.csv: the link leads back to itself"),
    (["good.csv", "--csv", "pipe.csv"], "cannot write pipe.csv: it is a pipe or a device"),
    (["good.csv", "--csv", "self.csv"], "--csv would replace good.csv, which is read"),
    (["from_csv", *SIZE], "from_csv reads an order from a file; give"),
    (["quote.csv"], "quote.csv: line 2: this is no CSV: a quote is opened and not closed"),
    (["binary.csv"], "cannot read the order binary.csv: it is not text in UTF-8"),
    (["row.csv"], "but no rank runs stage 1; stages are numbered from 0 without gaps"),
    (["cell.csv"], "line 1, cell 3: '0X0' is no step"),
    (["twice.csv"], "rank 0, position 1: 0F0 is already run at rank 0, position 0"),
    (["no_backward.csv"], "0F1 has no backward; 0B1, or 0I1 and 0W1, must follow it"),
    (["no_forward.csv"], "0B1 has no forward; 0F1 must come before it"),
    (["w_first.csv"], "0W0 needs 0I0, which comes later"),
    (["b_and_i.csv"], "B is I and W at once"),
    (["two_ranks.csv"], "which rank 0 runs too"),
    (["gap.csv"], "but no rank runs microbatch 1; microbatches are numbered"),
    (["swapped.csv"], "both ends must take messages in one order"),
    (["stuck.csv"], "deadlock: rank 0, position 1: 0B0 waits for rank 1, position 2: 1B0"),
    (["good.csv", "--ranks", "3"], "--ranks is 3, but the order in good.csv has 2"),
    (["good.csv", "--microbatches", "3"], "--microbatches is 3, but the order in good.csv has 2"),
    (["good.csv", "--chunks", "2"], "--chunks is 2, but the order in good.csv has 1"),
    (["good.csv", "--option", "group=2"], "--option group: the order in good.csv has no options"),
    (["gpipe", "--microbatches", "8"], "the schedule gpipe needs --ranks, such as"),
    (["gpipe"], "the schedule gpipe needs --ranks and --microbatches"),
    ([*NAMED, "--option", "group=8"], 'gpipe has no option "group"; it has none'),
    (["zb_1p", *NAMED[1:], "--option", "mem=6"], 'no option "mem"; it has memory, exact'),
    (["zb_1p", *NAMED[1:], "--option", "memory=x"], '--option memory = "x" must be a number'),
    (["zb_1p", *NAMED[1:], "--option", "memory=nan"], "must be a number"),
    (["zb_1p", *NAMED[1:], "--option", "memory=true"], "memory = true must be a number"),
    (["interleaved_1f1b", *NAMED[1:], "--option", "group=true"], "must be a whole number"),
    (["zb_1p", *NAMED[1:], "--option", "memory=0"], "memory = 0 must be at least 1"),
    (["zb_1p", *NAMED[1:], "--option", "exact=1"], "exact = 1 must be true or false"),
    (["zb_1p", *NAMED[1:], "--option", "F=2"], "--option F is given by --times"),
    (["looped_bfs", *NAMED[1:], "--option", "chunks=2"], "is given by --chunks"),
    (["interleaved_1f1b", *NAMED[1:], "--option", "group=2.5"], "must be a whole number"),
    ([*NAMED, "--option", "group"], "--option takes KEY=VALUE, such as group=8"),
    ([*NAMED, "--option", "a=1", "--option", "a=2"], '--option gives "a" twice'),
    ([*NAMED, "--p2p", "both"], '--p2p is direction, pair or batched, not "both"'),
    (["swapped.csv", "--p2p", "batched"], "single sends and receives cannot be 'batched'"),
    ([*NAMED, "--pair", "both"], '--pair is fused or serial, not "both"'),
    (["good.csv", "--pair", "shared"], "--pair shared needs a GPU that the two of a pair share"),
    (["good.csv", "--times", "F=fast"], "--times takes positive seconds"),
    (["good.csv", "--csv", "x.svg", "--plot", "x.svg"], "both name x.svg; give two files"),
    (["good.csv", "--csv", "good.csv"], "--csv would replace good.csv, which is read"),
    (["good.csv", "--csv", "../FOLDER/good.csv"], "good.csv, which is read; name another file"),
    (["stuck.csv", "--csv", "a/x.csv", "--plot", "a/x.png"], "deadlock"),
]


@pytest.mark.parametrize(("line", "sentence"), BROKEN, ids=[" ".join(line) for line, _ in BROKEN])
def test_what_is_broken_is_one_sentence(
    line: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    traincast: Call,
) -> None:
    """On standard error, with exit code 2; no file is written or changed."""
    for name, text in FILES.items():
        (tmp_path / f"{name}.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    before = contents(tmp_path)
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    (tmp_path / "self.csv").symlink_to("good.csv")
    monkeypatch.chdir(tmp_path)
    code, out, err = traincast("schedule", *(w.replace("FOLDER", tmp_path.name) for w in line))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert sentence in err
    assert contents(tmp_path) == before
    assert (tmp_path / "pipe.csv").is_fifo()


def contents(folder: Path) -> dict[Path, bytes]:
    """Of the files there; pipes and links have none."""
    files = [file for file in folder.iterdir() if file.is_file() and not file.is_symlink()]
    return {file: file.read_bytes() for file in files}


def test_a_large_order_is_read(tmp_path: Path) -> None:
    """Of 64 ranks, 512 microbatches and two chunks, 0.7 MiB."""
    plan = schedules.load("interleaved_1f1b")(64, 512)
    (tmp_path / "order.csv").write_text(schedule_csv.text(plan))
    assert from_csv.from_csv(tmp_path / "order.csv") == plan


def test_what_runs_under_other_streams_is_told_so(tmp_path: Path, traincast: Call) -> None:
    """Megatron's order under exchanges that are not Megatron's; not one that never runs."""
    order = tmp_path / "order.csv"
    order.write_text(schedule_csv.text(schedules.load("interleaved_1f1b")(4, 8)))
    code, _, err = traincast("schedule", order, "--p2p", "batched")
    assert code == 2
    assert err.startswith(f"error: {order}: deadlock: rank 0's exchange")
    assert err.endswith('; p2p = "direction" runs it\n')
    assert traincast("schedule", order, "--p2p", "direction")[0] == 0
    order.write_text(STUCK)
    code, _, err = traincast("schedule", order, "--p2p", "batched")
    assert "deadlock" in err
    assert "runs it" not in err
