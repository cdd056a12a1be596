"""Recordings of several ranks: what belongs together, and clocks that run apart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sim import run as simulate_recipe
from traces.hta.files import write_rank_files
from traces.kineto.clocks import ClockCorrection, align, residual
from traces.reading import read
from traces.replay.hosts import ops_of

NCCL = "ncclDevKernel_AllReduce_Sum_f16_RING_LL"
P2P = "ncclDevKernel_SendRecv"


def parts(recording) -> list[list[tuple[int, str]]]:
    """Members (rank, name) of every part that has several, in order of their work."""
    graph = recording.timeline.graph
    members: dict[int, list[tuple[int, str]]] = {}
    for i in range(len(graph)):
        for part in graph.parts(i).tolist():
            members.setdefault(part, []).append((graph.op(i).rank, graph.op(i).name))
    return list(members.values())


def collective(kineto, n: int, ts: int, dur: int, pg: str = "0", ranks="[0, 1]", **args):
    """The n-th launch of a rank; its kernel from ``ts`` on."""
    more = {
        "Collective name": "allreduce", "Process Group Name": pg, "Process Group Ranks": ranks,
        "Group size": 2, **args,
    }  # fmt: skip
    return kineto.launched(f"{NCCL}_{n}", 10 * n, ts, dur, n, stream=24, **more)


def test_a_collective_moves_data_from_its_last_start_to_its_first_end(kineto):
    """Starts 100 and 140, ends 200 and 203: 60 us of transfer, tails of 0 and 3 us."""
    files = [
        kineto.write(collective(kineto, 1, 100, 100), 0),
        kineto.write(collective(kineto, 1, 140, 63), 1),
    ]
    made = read(files)
    graph = made.timeline.graph
    assert parts(made) == [[(0, f"{NCCL}_1"), (1, f"{NCCL}_1")]]
    assert graph.works[graph.part_work[0]].seconds == pytest.approx(60e-6)
    assert graph.part_tail.tolist() == pytest.approx([0, 3e-6])
    assert (made.counts["collectives"], made.counts["collectives_matched"]) == (1, 1)


def test_sequence_numbers_match_where_the_kth_would_not(kineto):
    """Rank 1's window begins one collective later."""
    one = [e for n in (1, 2, 3) for e in collective(kineto, n, 100 * n, 50, Seq=n)]
    two = [e for n in (2, 3) for e in collective(kineto, n, 100 * n, 50, Seq=n)]
    made = read([kineto.write(one, 0), kineto.write(two, 1)])
    assert sorted(parts(made)) == [[(0, f"{NCCL}_{n}"), (1, f"{NCCL}_{n}")] for n in (2, 3)]
    assert (made.counts["collectives"], made.counts["collectives_matched"]) == (3, 2)
    assert "1 of 3 collectives lack a rank" in made.warnings[0]


def test_sizes_tell_a_window_that_begins_later(kineto):
    """No sequence numbers; rank 1 saw the second and third of three sizes."""
    sizes = {1: 64, 2: 128, 3: 256}
    one, two = (
        [e for n in seen for e in collective(kineto, n, 100 * n, 50, **{"In msg nelems": sizes[n]})]
        for seen in ((1, 2, 3), (2, 3))
    )
    made = read([kineto.write(one, 0), kineto.write(two, 1)])
    assert sorted(parts(made)) == [[(0, f"{NCCL}_{n}"), (1, f"{NCCL}_{n}")] for n in (2, 3)]


def test_sequence_number_of_the_host_counts_for_the_kernel(kineto):
    """Until PyTorch 2.2 only the host's event has it, among unnamed inputs, with an address."""

    def rank(address: int, first: int) -> list:
        out = []
        for n in range(first, 4):
            inputs = f'["", "{336 + n}", "{address}", "0", "", "[]", "[]", "2"]'
            host = kineto.event(
                "cpu_op", "record_param_comms", 10 * n - 2, 9, **{"Concrete Inputs": inputs}
            )
            out += [host, *kineto.launched(f"{NCCL}_{n}", 10 * n, 100 * n, 50, n, stream=24)]
        return out

    made = read([kineto.write(rank(93825114, 1), 0), kineto.write(rank(94025871, 2), 1)])
    assert sorted(parts(made)) == [[(0, f"{NCCL}_{n}"), (1, f"{NCCL}_{n}")] for n in (2, 3)]


def test_two_groups_on_one_stream_are_kept_apart(kineto):
    """They take turns on one stream, in another order on rank 1: the group decides."""
    a = {"pg": "3", "ranks": "[0, 1]"}
    b = {"pg": "9", "ranks": "[0, 1]", "Process Group Description": "mesh_tp"}
    one = collective(kineto, 1, 100, 50, **a) + collective(kineto, 2, 200, 50, **b)
    two = collective(kineto, 2, 100, 50, **b) + collective(kineto, 1, 200, 50, **a)
    made = read([kineto.write(one, 0), kineto.write(two, 1)])
    assert sorted(parts(made)) == [[(0, f"{NCCL}_{n}"), (1, f"{NCCL}_{n}")] for n in (1, 2)]
    graph = made.timeline.graph
    assert {graph.works[w].dimension for w in graph.part_work} == {"", "tp"}


def test_texts_of_ranks_cut_or_not_and_whole_lists_of_groups(kineto):
    """A long list of ranks is cut in the args; the file's list of groups, here a text, has it.
    So rank 1 is known not to be a member."""
    groups = {
        "pg_config": [{"pg_name": "5", "pg_desc": "undefined", "ranks": str([*range(0, 128, 2)])}]
    }
    files = []
    for rank in (0, 1, 126):
        args = {"pg": "5", "ranks": "[0, 2, ..., 126]", "Group size": 64}
        events = collective(kineto, 1, 100 + rank, 50, **args)
        path = kineto.write(events if rank != 1 else kineto.launched("gemm", 1, 10, 5, 1), rank)
        more = json.dumps(groups)[1:-1]
        path.write_text(path.read_text().replace('"world_size": 2', f'"world_size": 128, {more}'))
        files.append(path)
    made = read(files)
    assert parts(made) == [[(0, f"{NCCL}_1"), (126, f"{NCCL}_1")]]
    assert made.counts["collectives_matched"] == 1
    (said,) = made.warnings  # nothing of rank 1
    assert said.startswith("ranks 2, 4, 6, 8, 10, 12, 14, 16, ... were not read, though")


def test_messages_are_pairs(kineto):
    """Rank 0 sends twice and receives once; both kernels are SendRecv, the args tell which."""

    def message(n: int, ts: int, name: str, source: int, target: int) -> list:
        args = {"Collective name": name, "Src Rank": source, "Dst Rank": target, "Group size": 2}
        return kineto.launched(
            f"{P2P}_{n}", 10 * n, ts, 30, n, stream=20 + (name == "recv"), **args
        )

    one = (
        message(1, 100, "send", 0, 1)
        + message(2, 200, "recv", 1, 0)
        + message(3, 300, "send", 0, 1)
    )
    two = (
        message(4, 100, "recv", 0, 1)
        + message(5, 200, "send", 1, 0)
        + message(6, 300, "recv", 0, 1)
    )
    made = read([kineto.write(one, 0), kineto.write(two, 1)])
    assert sorted(parts(made)) == [
        [(0, f"{P2P}_{a}"), (1, f"{P2P}_{b}")] for a, b in ((1, 4), (2, 5), (3, 6))
    ]
    graph = made.timeline.graph
    assert {graph.works[w].dimension for w in graph.part_work} == {"pp"}
    assert made.counts["collectives_matched"] == 3


def test_a_batch_of_messages_is_one_kernel_with_several_parts(kineto):
    """``batch_isend_irecv``: two messages are posted, then one kernel is launched for both."""

    def batch(rank: int) -> list:
        ends = {"send": (rank, 1 - rank), "recv": (1 - rank, rank)}
        posts = [
            kineto.posted(name, 2 * k, 1, **{"Src Rank": s, "Dst Rank": d, "Group size": 2})
            for k, (name, (s, d)) in enumerate(ends.items())
        ]
        return posts + kineto.launched(P2P, 10, 100, 30, 1, stream=20)

    made = read([kineto.write(batch(0), 0), kineto.write(batch(1), 1)])
    assert parts(made) == [[(0, P2P), (1, P2P)]] * 2
    assert made.counts["collectives_matched"] == 2


@pytest.mark.parametrize("told", ["args", "annotation"])
def test_an_all_to_all_is_no_message_though_its_kernel_says_so(kineto, told):
    args = {"Collective name": "all_to_allv", "Process Group Ranks": "[0, 1]"}
    events = kineto.launched(P2P, 10, 100, 30, 1, stream=20, **(args if told == "args" else {}))
    if told == "annotation":
        events.append(kineto.event("user_annotation", "nccl:all_to_all", 8, 20))
    made = read([kineto.write(events, 0), kineto.write(events, 1)])
    graph = made.timeline.graph
    assert parts(made) == [[(0, P2P), (1, P2P)]]
    assert graph.works[graph.part_work[0]].dimension == ""  # and not "pp"


def noisy(rng, offset: float, drift: float) -> list[dict[int, float]]:
    """Ends of 80 collectives over 0.6 s on 3 ranks within 30 us, rank 2 on another clock."""
    out = []
    for t in np.sort(rng.uniform(0, 0.6, 80)):
        real = t + rng.uniform(0, 30e-6, 3)
        out.append({0: real[0], 1: real[1], 2: (real[2] - offset) / (1 + drift)})
    return out


@pytest.mark.parametrize("drift", [0.0, 50e-6, 500e-6])
def test_a_clock_that_is_off_and_drifts_is_found(drift):
    for seed in range(5):
        ends = noisy(np.random.default_rng(seed), 3e-3, drift)
        clocks = align(ends, [0, 1, 2])
        at = np.array([0.0, 0.3, 0.6])
        assert clocks[2]((at - 3e-3) / (1 + drift)) == pytest.approx(at, abs=20e-6)
        assert clocks[0] == clocks[1] == ClockCorrection(0.0, 0.0)  # nothing but noise
        assert (
            residual(ends, clocks)
            < 30e-6
            < residual(ends, dict.fromkeys(clocks, ClockCorrection(0, 0)))
        )


def test_ranks_that_share_nothing_are_aligned_through_others():
    """0 with 1, 1 with 2: rank 2 is 5 ms behind rank 1, which is 2 ms behind rank 0."""
    ends = [{0: t + 7e-3, 1: t + 5e-3} for t in (0.1, 0.2)] + [
        {1: t + 5e-3, 2: t} for t in (0.3, 0.4)
    ]
    clocks = align(ends, [0, 1, 2, 3])
    offsets = [clocks[rank].offset for rank in range(4)]
    assert offsets == pytest.approx([0, 2e-3, 7e-3, 0])


@pytest.mark.slow
def test_a_simulated_step_comes_back_from_the_files_written_for_hta(tmp_path):
    """All ops but for half a microsecond, every collective and message of 4 ranks matched."""
    recipe = Path(__file__).parents[3] / "validation/recipes/korthikanti_22b_full.toml"
    small = {"model.layers": 4, "cluster.gpus": 4, "parallelism.tp": 2, "parallelism.pp": 2}
    more = {"parallelism.p2p": "direction", "training.global_batch": 16, "simulation.fold": "none"}
    written = simulate_recipe(recipe, small | more | {"parallelism.sp": True}).timeline
    write_rank_files(written, tmp_path)
    made = read([tmp_path])
    on_gpu = [ops_of(made.timeline, rank) for rank in range(4)]
    for rank, ops in enumerate(on_gpu):
        there = np.flatnonzero(written.graph.rank == rank)
        end = np.sort(written.end[there]) - written.end[there].min()
        assert np.sort(made.timeline.end[ops]) - made.timeline.end[ops].min() == pytest.approx(
            end, abs=1.01e-6
        )
    assert made.counts["collectives"] == made.counts["collectives_matched"]
    assert made.counts["collectives"] == len(written.graph.part_work)
    sizes = [np.bincount(np.bincount(of.graph.part)).tolist() for of in (made.timeline, written)]
    assert sizes[0] == sizes[1]
    assert made.clock_residual < 2e-6
    assert made.warnings == ()
