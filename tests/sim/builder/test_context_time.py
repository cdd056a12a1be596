"""Context parallelism on a machine: what is hidden, which placement is faster, what is sent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sim.analysis.breakdown import breakdown
from sim.analysis.traffic import bytes_sent
from sim.builder.job import Job
from sim.builder.shares import share
from sim.builder.stage import stage_programs
from sim.graph import Builder, Communication
from sim.machine.cluster import at_boost, load
from sim.machine.collectives import alone, traffic
from sim.machine.kernels import compute_seconds
from sim.machine.price import price
from sim.runs.fold import loads
from sim.runs.stage_times import stage_timelines
from sim.timeline import Timeline

WIDTHS = {
    "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336, "gated": True,
    "attention": "flash", "position": "rope", "positions": 0, "dropout": 0.0, "micro_batch": 1,
}  # fmt: skip
LENGTHS = [1024, 2048, 8192, 32768]


def run(
    small_job: Callable[..., Job], sequence: int, cp: int = 4, gpus: int = 8, **changes: object
) -> tuple[Job, dict[str, Timeline]]:
    job = small_job(sequence=sequence, cp=cp, **(WIDTHS | changes))
    return job, dict(stage_timelines(job, at_boost(load("dgx_h100", gpus)), range(1)))


@pytest.mark.parametrize("sequence", LENGTHS)
def test_hops_are_hidden_while_a_block_takes_longer(
    small_job: Callable[..., Job], sequence: int
) -> None:
    """Zigzag forward: three hops, each beside a block; what sticks out is the difference."""
    job, ran = run(small_job, sequence, kv_heads=32)
    cluster = load("dgx_h100", 8)
    part = share(job)
    size = 2 * part.rows * 32 * 128 * 2
    hop = alone(cluster, traffic(cluster, Communication("ring_exchange", size, (0, 1, 2, 3), "cp")))
    work = [
        item.work
        for item in stage_programs(job, [0], False, False)["F"]
        if item.name in ("attention", "attention_merge")
    ]
    costs = [compute_seconds(cluster.gpu, one) for one in work]
    seconds = [max(arithmetic, memory) + fixed for arithmetic, memory, fixed in costs]
    beside = [kernel + merge for kernel, merge in zip(seconds[::2], seconds[1::2], strict=True)]
    out = sum(max(0.0, hop - step) for step in beside[:3])  # rank 0; the last has no hop beside it
    exposed = breakdown(ran["F"]).exposed["cp"][0]
    slower = 0.15 * sum(beside[:3])  # kernels beside a hop are, by less than this
    assert max(out - slower, 0.4 * out) <= exposed <= out + 1e-15
    assert (exposed < 1e-9) == (sequence >= 32768)


def test_contiguous_placement_waits_for_its_last_rank(small_job: Callable[..., Job]) -> None:
    """Whose attention takes N - 1/2 blocks, where a balanced placement gives all N / 2."""
    times = {}
    for placement in ("contiguous", "zigzag", "striped"):
        _, ran = run(small_job, 131072, cp_placement=placement)
        times[placement] = ran["F"].seconds
        busy = breakdown(ran["F"]).compute
        assert (busy.max() < 1.02 * busy.min()) == (placement != "contiguous")
    _, alone = run(small_job, 32768, cp=1)  # the same tokens, whose attention is half a block
    half = breakdown(alone["F"]).compute.max()
    attention = alone["F"].graph.names.index("attention")
    (op,) = (i for i, name in enumerate(alone["F"].graph.name) if name == attention)
    kernel = alone["F"].end[op] - alone["F"].start[op]
    assert times["zigzag"] == pytest.approx(half + kernel * 3, rel=0.03)
    assert times["contiguous"] == pytest.approx(half + kernel * 6, rel=0.03)
    assert times["striped"] == pytest.approx(times["zigzag"], rel=0.01)


@pytest.mark.parametrize("kind", ["ring", "ulysses", "allgather", "usp"])
def test_a_group_beside_tensor_parallel_peers(small_job: Callable[..., Job], kind: str) -> None:
    """2 x 4 GPUs: bytes per rank by formula, half of the heads each, all ranks of both axes."""
    a = 8192 * 4096 * 2 / 2  # of the full sequence, a tensor-parallel rank's heads
    kv = a / 4
    job, ran = run(small_job, 8192, tp=2, sp=True, cp_kind=kind, ulysses=2 if kind == "usp" else 1)
    sent = bytes_sent(ran["F"].graph)
    expected = {
        "ring": {"cp": 3 * 2 * kv / 4},
        "allgather": {"cp": 3 * 2 * kv / 4},
        "ulysses": {"cp": 3 / 16 * 2 * (a + kv)},
        "usp": {"cp_ulysses": 1 / 8 * 2 * (a + kv), "cp_ring": 2 * kv / 4},
    }[kind]
    for axis, size in expected.items():
        assert set(sent[axis].values()) == {size}
    assert set(sent["tp"].values()) == {4 * job.boundary_bytes}  # its own tokens alone
    assert list(sent["tp"]) == list(range(8))


def test_two_halves_are_the_whole_backward(small_job: Callable[..., Job]) -> None:
    """Under Ulysses nothing runs beside anything but the weight gradients, which are apart."""
    _, ran = run(small_job, 16384, cp_kind="ulysses")
    apart = ran["I"].seconds + ran["W"].seconds
    assert ran["B"].seconds == pytest.approx(apart, rel=1e-12)
    exposed = breakdown(ran["F"])
    assert exposed.exposed["cp"] == pytest.approx(exposed.total["cp"], rel=1e-12)


def test_kernels_of_sends_and_receives_take_the_sms_of_those() -> None:
    """8 inside a node; between nodes 2 per peer, and 4 per GPU of a node where all are peers."""
    cluster = load("dgx_h100", 16)
    for collective, ranks, sms in (
        ("ring_exchange", (0, 1), 8),
        ("ring_exchange", (0, 8), 2),
        ("all_to_all", (0, 1), 8),
        ("all_to_all", (0, 8), 4),
    ):
        work = Communication(collective, 1e6, ranks, "cp")
        builder = Builder()
        builder.join([builder.add("it", rank, "cp", work) for rank in ranks])
        (load_of,) = loads(cluster, None, (), [work])
        machine = price(builder.graph(), cluster, {work: load_of})
        assert machine.sms.tolist() == [sms]
        assert machine.hbm[0] > 0
