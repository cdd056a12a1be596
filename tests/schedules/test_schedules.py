"""Schedules against independent oracles: orders that ran elsewhere, closed forms, counting."""

import csv
import itertools
import json
from pathlib import Path

import pytest

import schedules
from schedules import Pair, Plan, Step
from schedules.legality import POLICIES

ORDERS = Path(__file__).parents[3] / "shared/data/orders"
needs_orders = pytest.mark.skipif(
    not ORDERS.exists(), reason="the recorded orders lie beside the repository, in ../shared"
)
SHAPES = [(1, 8), (2, 4), (2, 8), (3, 6), (4, 4), (4, 16), (8, 8)]  # ranks, microbatches

F, I, W = 5.0, 4.0, 3.0  # no two equal, none the sum of others  # noqa: E741
SECONDS = {"F": F, "B": I + W, "I": I, "W": W}

MAKESPAN = {  # per stage; GPipe and Narayanan et al. 2021, section 2.2
    "gpipe": lambda p, m, v: (m + p - 1) * (F + I + W),
    "one_f_one_b": lambda p, m, v: (m + p - 1) * (F + I + W),
    "interleaved_1f1b": lambda p, m, v: (m * v + p - 1) * (F + I + W),
}


def times(plan: Plan) -> dict[Step, tuple[float, float]]:
    """Start and end of each step when a step runs as soon as its rank and its inputs allow."""
    last = max(step.stage for steps in plan for step in steps)
    done: dict[Step, tuple[float, float]] = {}
    position, clock = [0] * len(plan), [0.0] * len(plan)
    while len(done) < sum(map(len, plan)):
        before = len(done)
        for rank, steps in enumerate(plan):
            while position[rank] < len(steps):
                step = steps[position[rank]]
                inputs = needs(step, last)
                if not all(need in done for need in inputs):
                    break
                start = max([clock[rank], *(done[need][1] for need in inputs)])
                clock[rank] = start + SECONDS[step.kind]
                done[step] = (start, clock[rank])
                position[rank] += 1
        assert len(done) > before, "deadlock"
    return done


def needs(step: Step, last: int) -> list[Step]:
    stage, kind, m = step
    if kind == "F":
        return [Step(stage - 1, "F", m)] if stage else []
    own = [Step(stage, "F", m)]
    return own if stage == last else [*own, Step(stage + 1, kind, m)]


@pytest.mark.parametrize("name", schedules.names())
@pytest.mark.parametrize(("ranks", "microbatches"), SHAPES)
def test_every_step_is_there_once(name, ranks, microbatches):
    try:
        plan = schedules.load(name)(ranks, microbatches)
    except ValueError:
        pytest.skip(f"{name} does not take this shape")
    steps = [step for rank in schedules.flat(plan) for step in rank]
    assert len(steps) == len(set(steps))
    for stage, m in itertools.product({step.stage for step in steps}, range(microbatches)):
        assert "".join(k for k in "FBIW" if Step(stage, k, m) in steps) in ("FB", "FIW")


@pytest.mark.parametrize("name", MAKESPAN)
@pytest.mark.parametrize(("ranks", "microbatches"), SHAPES)
@pytest.mark.parametrize("chunks", [2, 3])
def test_makespan_is_the_published_one(name, ranks, microbatches, chunks):
    given = {"chunks": chunks} if "chunks" in schedules.options(name) else {}
    ran = times(schedules.load(name)(ranks, microbatches, **given))
    assert max(end for _, end in ran.values()) == MAKESPAN[name](ranks, microbatches, chunks)


def torch_rows(file: Path) -> list[list[str]]:
    """The computing steps of each rank, idle slots and FSDP's markers left out."""
    rows = csv.reader(file.read_text().splitlines())
    return [[cell for cell in row if cell and not cell.endswith("REDUCE_GRAD")] for row in rows]


@needs_orders
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("gpipe", "GPipe"),
        ("one_f_one_b", "1F1B-executed"),  # torch's own listing of 1F1B is off by one
        ("interleaved_1f1b", "Interleaved1F1B"),
    ],
)
def test_order_is_the_one_torch_runs(ours, theirs):
    files = sorted(ORDERS.glob(f"torch/{theirs}_P*.compute.csv"))
    assert len(files) >= 7
    for file in files:
        p, m, v = (int(part[1:]) for part in file.name.split(".")[0].split("_")[1:])
        given = {"chunks": v} if v > 1 else {}
        plan = schedules.load(ours)(p, m, **given)
        assert [[str(step) for step in steps] for steps in plan] == torch_rows(file), file.name


@needs_orders
def test_interleaved_order_is_megatrons_for_every_group_size():
    files = sorted(ORDERS.glob("megatron/interleaved_P*.json"))
    assert len(files) >= 9
    for file in files:
        case = json.loads(file.read_text())
        plan = schedules.load("interleaved_1f1b")(
            case["P"], case["M"], case["v"], case["microbatch_group_size_per_vp_stage"]
        )
        ours = {str(rank): [str(step) for step in steps] for rank, steps in enumerate(plan)}
        assert ours == case["order"], file.name


@needs_orders
def test_interleaved_with_overlap_is_megatrons():
    """Warm-up of one more forward; the steady phase is pairs, of which the recording tells flat."""
    files = sorted(ORDERS.glob("megatron/interleaved_moe_overlap_P*.json"))
    assert files
    for file in files:
        case = json.loads(file.read_text())
        plan = schedules.load("interleaved_1f1b")(
            case["P"], case["M"], case["v"], case["N"], overlap=True
        )
        ours = {str(r): [str(s) for s in steps] for r, steps in enumerate(schedules.flat(plan))}
        assert ours == case["order"], file.name
        for steps in plan:
            kinds = [kind for kind, _ in itertools.groupby(map(type, steps))]
            assert kinds == [Step, Pair, Step]


def test_too_few_microbatches_for_a_pair_are_all_forwards_first():
    """Megatron caps the warm-up at all steps: rank 0 of 4 would lead by 11 of 8, rank 3 by 5."""
    plan = schedules.load("interleaved_1f1b")(4, 4, overlap=True)
    assert [sum(isinstance(item, Pair) for item in steps) for steps in plan] == [0, 0, 1, 3]
    assert [str(step) for step in plan[0]] == [
        f"{stage}{kind}{m}" for stage, kind in ((0, "F"), (4, "F"), (4, "B"), (0, "B"))
        for m in range(4)
    ]  # fmt: skip


def test_overlap_is_yes_or_no():
    for overlap in (True, False):
        schedules.check("interleaved_1f1b", 4, 8, overlap=overlap)
    with pytest.raises(ValueError, match="the schedule gpipe has no overlap; leave it out"):
        schedules.check("gpipe", 4, 8, overlap=True)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("microbatches", range(1, 25))
def test_interleaved_takes_what_megatron_or_torch_takes(ranks, microbatches):
    rounds = max(1, microbatches // ranks)
    torchs = microbatches // rounds if microbatches % rounds == 0 else None
    for group in [None, *range(1, 26)]:
        size = ranks if group is None else group
        megatron = ranks <= size <= microbatches and (
            microbatches % size == 0 or microbatches % size >= ranks
        )
        legal = megatron or (torchs is not None and group in (None, torchs))
        if legal:
            plan = schedules.load("interleaved_1f1b")(ranks, microbatches, 2, group)
            assert len(times(plan)) == 4 * ranks * microbatches  # runs to its end
        else:
            with pytest.raises(ValueError, match=r"microbatch"):
                schedules.check("interleaved_1f1b", ranks, microbatches, group=group)


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches", "given", "sentence"),
    [
        ("gpip", 4, 8, {}, "no schedule 'gpip'; did you mean gpipe?"),
        ("gpipe", 0, 8, {}, "ranks = 0 must be at least 1"),
        ("gpipe", 4, 8, {"chunks": 2}, "the schedule gpipe has no chunks"),
        ("interleaved_1f1b", 4, 11, {}, "8 or 12 would"),
        ("interleaved_1f1b", 4, 11, {"group": 5}, "a microbatch group of 5"),
    ],
)
def test_what_cannot_run_is_refused_in_a_sentence(name, ranks, microbatches, given, sentence):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        schedules.check(name, ranks, microbatches, **given)
    assert sentence in str(error.value)


def test_a_stage_on_two_ranks_is_refused():
    assert schedules.stage_rank(schedules.load("gpipe")(3, 2)) == {0: 0, 1: 1, 2: 2}
    with pytest.raises(ValueError, match="stage 1 is run by rank 0 and by rank 1"):
        schedules.stage_rank([[Step(1, "F", 0)], [Step(1, "F", 1)]])


@pytest.mark.parametrize("name", [*schedules.names(), "from_csv"])
def test_a_schedule_says_how_messages_are_sent_where_it_comes_from(name):
    """In its own file, and so that its order does not stop."""
    module = schedules._module(name)
    assert "P2P" in vars(module)
    assert schedules.p2p(name) in getattr(module, "POLICIES", POLICIES)
    if name != "from_csv":
        times = {"F": F, "I": I, "W": W, "p2p": 0.5} if schedules.takes_times(name) else {}
        plan = schedules.load(name)(4, 8, **times)
        schedules.require_legal(plan, schedules.p2p(name), "fused")


def test_a_file_that_sends_in_no_known_way_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text(
        'P2P = "both"\ndef mine(ranks, microbatches):\n    return []\n'
    )
    with pytest.raises(ValueError, match=r"P2P = 'both' must be direction, pair or batched$"):
        schedules.p2p(str(tmp_path / "mine.py"))
