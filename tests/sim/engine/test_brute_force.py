"""The engine gives the times of a naive simulator that shares no code with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from sim import run
from sim.engine import simulate
from sim.graph import Builder, Communication, Compute, Copy, Fixed, Graph, Host, Work
from sim.machine.hardware import CommunicationCost, Machine, table
from sim.recipe import recipe_file
from tests.sim.engine.naive import times

pytestmark = pytest.mark.slow

KERNELS = [
    *(Compute("gemm", 6.0, 1.5), Compute("gemm", 2.75, 0.5), Compute("norm", 0.0, 4.0)),
    *(Compute("norm", 0.25, 1.25), Compute("gemm", 3.0, 3.0)),
]
FIXED = [Fixed(1.3), Fixed(3.1), Fixed(0.0)]
OTHERS = [Copy(2.25, "h2d"), Copy(0.6, "d2h"), Host(1.7), Fixed(0.9, "copy")]
LINKS = 4


def drawn(seed: int) -> tuple[Graph, Machine]:
    """Kernels, copies and communication of several parts on 4 ranks, and a machine for them."""
    random = Random(seed)
    b = Builder()
    works = [_communication(random, k) for k in range(random.randint(1, 5))]
    fixed_streams = random.random() < 0.4  # a second stream of kernels that nothing slows
    turns = random.random() < 0.35
    if turns:
        _turns(random, b)
    for _ in range(random.randint(2, 5) if turns else random.randint(3, 9)):
        if random.random() < 0.5:
            _kernels(random, b, fixed_streams)
        else:
            _exchange(random, b, works)
    graph = b.graph()
    return graph, _machine(random, graph)


def _kernels(random: Random, b: Builder, fixed_streams: bool) -> None:
    rank = random.randrange(4)
    stream = random.choice(["compute", "compute", "compute", "side", "copies"])
    choose = KERNELS + FIXED
    if stream == "copies":
        choose = OTHERS
    elif stream == "side" and fixed_streams:
        choose = FIXED
    for _ in range(random.randint(1, 3)):
        work = random.choice(OTHERS if random.random() < 0.2 else choose)
        b.add("kernel", rank, stream, work, _waits(random, b), lag=_seldom(random))


def _turns(random: Random, b: Builder) -> None:
    """Two communications on streams of their own by turns, mostly with a kernel between them."""
    ranks = random.sample(range(4), random.randint(1, 2))
    works = [Communication("p2p", size, (0, 1), "pp") for size in (20.0, 21.0)]
    after = [b.add("kernel", r, "compute", random.choice(KERNELS)) for r in ranks]
    turns, behind = list[list[int]](), random.choice([1, 2])
    for k in range(random.randint(2, 5)):
        waits = [[op] if random.random() < 0.95 else [] for op in after]
        mine = zip(ranks, waits, strict=True)
        ops = [b.add("turn", r, f"turn{k % 2}", works[k % 2], needs) for r, needs in mine]
        b.join(ops)
        turns.append(ops)
        needs = zip(ranks, turns[-min(behind, len(turns))], strict=True)
        after = [b.add("kernel", r, "compute", random.choice(KERNELS), [op]) for r, op in needs]


def _exchange(random: Random, b: Builder, works: list[Work]) -> None:
    """Ops of several ranks that share parts: a collective, or a batch of messages and more."""
    ranks = random.sample(range(4), random.randint(1, 4))
    stream = random.choice(["pp", "tp", "compute"])
    waits = _waits(random, b)
    ops = [
        b.add("comm", r, stream, random.choice(works), waits, lag=_seldom(random)) for r in ranks
    ]
    for op in ops:
        for earlier in _waits(random, b, before=ops[0]):
            b.wait(op, earlier, _seldom(random))
    groups = [ops] if random.random() < 0.4 else []
    pair = min(2, len(ops))
    groups += [random.sample(ops, random.randint(1, pair)) for _ in range(random.randint(0, 3))]
    for group in groups:
        tails = [_seldom(random) for _ in group] if random.random() < 0.2 else ()
        b.join(group, random.choice(works) if random.random() < 0.7 else None, tails)


def _waits(random: Random, b: Builder, before: int | None = None) -> list[int]:
    n = len(b._ops) if before is None else before
    return [random.randrange(n) for _ in range(random.choice([0, 0, 1, 2]))] if n else []


def _seldom(random: Random) -> float:
    return random.choice([0.35, 1.15]) if random.random() < 0.08 else 0.0


def _communication(random: Random, k: int) -> Work:
    if random.random() < 0.1:
        return Fixed(1.9, "communication", "tp")
    return Communication("p2p", 10.0 + k, (0, 1), "pp")


def _machine(random: Random, graph: Graph) -> Machine:
    """Links of unlike speed; communication of any latency, size, SMs and memory traffic."""

    def kernel(work: Work) -> tuple[float, float, float]:
        match work:
            case Compute(flops=flops, bytes=size):
                return (flops, size, 0.05)
            case Fixed(seconds=seconds):
                return (0.0, 0.0, seconds)
        return (0.0, 0.0, work.bytes)  # type: ignore[union-attr]

    def traffic(_: Communication) -> CommunicationCost:
        links = sorted(random.sample(range(LINKS), random.choice([0, 1, 2, 2, 3])))
        loads = [random.choice([1.0, 0.5, 0.8]) for _ in links]
        return CommunicationCost(
            latency=random.choice([0.0, 0.15, 1.0]),
            size=random.choice([0.0, 1.0, 2.6, 4.3]) if links else 0.0,
            links=tuple(links),
            coefficients=tuple(x / max(loads) for x in loads),
            sms=random.choice([0, 0, 40, 120]),
            hbm=random.choice([0.0, 0.3, 0.75]),
        )

    capacity = np.array([random.choice([1.0, 0.7, 2.0]) for _ in range(LINKS)])
    machine = table(graph.works, kernel, traffic, capacity, gpu_sms=132)
    if random.random() < 0.3:
        factor = np.array([random.choice([1.0, 1.3, 0.8]) for _ in range(len(graph))])
        factor[np.diff(graph.part_start) > 0] = 1.0
        machine = replace(machine, factor=factor)
    return replace(machine, contention=random.choice([0.0, 0.57, 1.0]))


def apart(graph: Graph, machine: Machine) -> float:
    """How far the engine's times lie from those of brute force, relative to the whole."""
    timeline = simulate(graph, machine)
    start, end = (np.array(column) for column in times(graph, machine))
    gaps = [np.abs(timeline.start - start).max(), np.abs(timeline.end - end).max()]
    return float(max(gaps)) / max(float(end.max()), 1e-300)


@pytest.mark.parametrize("some", range(10))
def test_drawn_graphs(some: int) -> None:
    """30 of 300 graphs: several parts per op, shared links, SMs and memory, lags, tails."""
    for seed in range(30 * some, 30 * some + 30):
        assert apart(*drawn(seed)) <= 1e-9, f"seed {seed}"


def test_three_thousand_graphs() -> None:
    for seed in range(1000, 4000):
        assert apart(*drawn(seed)) <= 1e-9, f"seed {seed}"


MODEL = {
    "hidden": 512, "heads": 8, "kv_heads": 4, "ffn": 1024, "vocab": 512,
    "attention": "flash", "position": "rope", "norm": "rms", "dropout": 0.0,
}  # fmt: skip
ANY_P2P = ["gpipe", "one_f_one_b", "interleaved_1f1b"]
SCHEDULES = [*ANY_P2P, *["interleaved_1f1b"] * 3, "zb_h1", "zb_v", "dualpipe_v"]


def drawn_recipe(random: Random, folder: Path, fold: str) -> dict[str, Any]:
    """A small job of 4 ranks with a layer per stage, on a fabric of its own."""
    fabric = folder / "fabric.toml"
    fabric.write_text(
        FABRIC.format(
            gpus=random.choice([1, 2, 4]),
            kind=random.choice(["fat_tree", "rail"]),
            hop=random.choice([0.3, 2.9]),
            over=random.choice([1.0, 2.0]),
            port=random.choice([4, 25]),
        )
    )
    name = random.choice(SCHEDULES)
    p2p = ["direction", "pair", "batched", "batched"] if name in ANY_P2P else ["direction"]
    tp, dp, pp = random.choice([(1, 2, 2), (2, 1, 2), (1, 1, 4)])
    chunks = 1 if name in ("gpipe", "one_f_one_b", "zb_h1") else 2
    parallelism = {
        "tp": tp, "dp": dp, "pp": pp, "sp": tp > 1 and random.random() < 0.5,
        "p2p": random.choice(p2p),
        "zero": random.choice([0, 1]), "bucket_mb": 1.0,
        "order": random.choice(["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]),
    }  # fmt: skip
    pair = random.choice(["fused", "shared"]) if name == "dualpipe_v" else None
    return {
        "model": MODEL | {"layers": pp * chunks, "sequence": random.choice([512, 2048])},
        "cluster": {"topology": str(fabric), "gpus": pp * tp * dp},
        "parallelism": parallelism,
        "schedule": {"name": name} | ({"pair": pair} if pair else {}),
        "training": {"micro_batch": 1, "global_batch": dp * (pp if chunks == 1 else 2 * pp),
            "dtype": "bf16"},
        "simulation": {"fold": fold},
    }  # fmt: skip


FABRIC = """
base = "dgx_a100"
name = "drawn"
[node]
gpus = {gpus}
source = "a test's own, as what follows"
[node.nic]
count = 1
bandwidth = "{port} GB/s"
source = "as above"
[fabric]
kind = "{kind}"
latency = "{hop} us"
nodes_per_leaf = 1
nodes_per_spine = 2
oversubscription = {over}
max_nodes = 64
source = "as above"
"""


@pytest.mark.parametrize("seed", range(60))
def test_drawn_recipes(tmp_path: Path, seed: int) -> None:
    """Folded and not, the engine is brute force, and one is the other for every op in both."""
    whole, folded = (
        run(recipe_file.parse(drawn_recipe(Random(seed), tmp_path, fold)))
        for fold in ("none", "auto")
    )
    start, end = (np.array(column) for column in times(whole.timeline.graph, whole.machine))
    seconds = whole.timeline.seconds
    assert np.abs(whole.timeline.end - end).max() <= 1e-9 * seconds
    assert np.abs(whole.timeline.start - start).max() <= 1e-9 * seconds
    if folded.lanes.axes:
        assert apart(folded.timeline.graph, folded.machine) <= 1e-9
    for rank in folded.timeline.graph.ranks().tolist():
        mine, theirs = (np.flatnonzero(t.timeline.graph.rank == rank) for t in (folded, whole))
        assert np.abs(folded.timeline.end[mine] - end[theirs]).max() <= 1e-9 * seconds
