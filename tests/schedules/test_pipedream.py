"""PipeDream and looped breadth-first: recorded orders, closed forms, versions of the weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import schedules
from schedules import looped_bfs, pipedream
from sim.runs.schedule_run import simulate_schedule

TIMES = [
    {"F": 5.0, "I": 4.0, "W": 3.0},
    {"F": 2.0, "I": 9.0, "W": 1.0},
    {"F": 6.0, "I": 1.0, "W": 10.0},
]


def test_orders_versions_and_staleness_are_pipedreams(shared: Path) -> None:
    """Weight stashing per minibatch, and 2BW over whole batches."""
    files = sorted((shared / "orders/pipedream").glob("*.json"))
    assert len(files) >= 5
    for file in files:
        run = json.loads(file.read_text())
        p, batch = run["P"], run["M"] if "batches" in run else None
        n = batch * run["batches"] if batch else run["minibatches"]
        plan = schedules.load("pipedream")(p, n, batch=batch)
        assert [[str(s) for s in row] for row in plan] == list(run["order"].values()), file.name
        kept = run.get("weight_versions_kept") or dict.fromkeys(range(p), run.get("versions_kept"))
        assert pipedream.versions_kept(p, batch) == list(kept.values())
        got = simulate_schedule("pipedream", p, n, 1, {"F": 1.0, "I": 1.0, "W": 1.0})
        assert got["makespan_s"] == run["makespan"]
        if not batch:
            assert pipedream.staleness(p) == list(run["staleness_steps"].values())
            used = [[pipedream.version(p, r, m) for m in range(n)] for r in range(p)]
            assert used == list(run["weight_version_used_by_minibatch"].values())


@pytest.mark.parametrize("batch", [None, 4, 6])
def test_a_version_is_one_that_exists_when_its_forward_begins(batch: int | None) -> None:
    """Counted along the order: a rank has as many versions behind it as whole batches of B."""
    p, n = 4, 24
    plan = schedules.load("pipedream")(p, n, batch=batch)
    for rank, steps in enumerate(plan):
        updates, backwards, in_use, most = 0, 0, {}, 0
        for _, kind, m in steps:
            if kind == "F":
                in_use[m] = pipedream.version(p, rank, m, batch)
                assert in_use[m] <= updates
                if batch is None:
                    assert in_use[m] == updates  # the newest there is
            else:
                assert in_use.pop(m) == pipedream.version(p, rank, m, batch)
                backwards += 1
                updates = backwards // (batch or 1)
            oldest = min(in_use.values(), default=updates)
            most = max(most, updates - oldest + 1)
        assert most <= pipedream.versions_kept(p, batch)[rank]


@pytest.mark.parametrize("times", TIMES, ids=str)
@pytest.mark.parametrize(("p", "n"), [(1, 3), (2, 1), (4, 3), (4, 16), (8, 20)])
def test_a_run_takes_the_closed_form(p: int, n: int, times: dict[str, float]) -> None:
    """(N + S - 1)(F + B), whatever the hops between updates; and no flush within."""
    got = simulate_schedule("pipedream", p, n, 1, times)
    assert got["makespan_s"] == (n + p - 1) * sum(times.values())
    assert got["idle_s"] == [pipedream.bubble(p, n, 1, *times.values())] * p
    assert got["peak_activations"] == pipedream.peak_activations(p, n, 1)


@pytest.mark.slow
@pytest.mark.parametrize("times", TIMES, ids=str)
@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 1), (4, 2), (4, 4), (4, 7), (8, 16)])
def test_looped_bfs_takes_the_closed_form(
    p: int, m: int, chunks: int, times: dict[str, float]
) -> None:
    """(p - 1)(F + I + W) of bubble once there are as many microbatches as ranks, more below."""
    got = simulate_schedule("looped_bfs", p, m, chunks, times)
    assert got["idle_s"] == [looped_bfs.bubble(p, m, chunks, *times.values())] * p
    assert got["peak_activations"] == looped_bfs.peak_activations(p, m, chunks)


def test_looped_bfs_is_torchs_order(shared: Path) -> None:
    files = sorted((shared / "orders/torch").glob("LoopedBFS_P*.compute.csv"))
    assert len(files) >= 8
    for file in files:
        p, m, v = (int(part[1:]) for part in file.name.split(".")[0].split("_")[1:])
        plan = schedules.load("looped_bfs")(p, m, v)
        theirs = [[c for c in line.split(",") if c] for line in file.read_text().split()]
        assert [[str(step) for step in row] for row in plan] == theirs, file.name


@pytest.mark.parametrize(
    ("microbatches", "batch", "sentence"),
    [(8, 3, "at least 4 would do"), (10, 4, "8 or 12 would be"), (2, 4, "4 would be")],
)
def test_batches_that_do_not_fit_are_refused(microbatches: int, batch: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        schedules.check("pipedream", 4, microbatches, batch=batch)
    assert sentence in str(error.value)
