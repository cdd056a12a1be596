"""The compiled engine gives SimPy's timeline, its counts and its errors, to the bit."""

from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from schedules.input_error import InputError
from sim.engine import DeadlockError, Stats, choice, simulate
from sim.graph import Builder, Communication, Compute, Graph
from sim.machine.hardware import CommunicationCost, Limits, Machine, table
from sim.runs.run import run
from tests.sim.engine.test_brute_force import drawn

MORE = int(os.environ.get("TRAINCAST_DRAWN_GRAPHS", "0"))
"""How many drawn graphs are compared besides, and whether every recipe is."""
RECIPES = sorted((Path(__file__).parents[3] / "validation" / "recipes").glob("*.toml"))

needs_numba = pytest.mark.skipif(bool(choice.missing()), reason="needs Numba (traincast[fast])")


def both(graph: Graph, machine: Machine) -> list[tuple[bytes, bytes, Stats]]:
    """Starts, ends and counts of each engine, or the message of its deadlock."""
    out = []
    for engine in ("simpy", "compiled"):
        stats = Stats()
        try:
            ran = simulate(graph, machine, stats=stats, engine=engine)
        except DeadlockError as error:
            out.append((str(error).encode(), b"", stats))
        else:
            out.append((ran.start.tobytes(), ran.end.tobytes(), stats))
    return out


@needs_numba
def test_drawn_graphs() -> None:
    """Shared links, several parts of one op, tails, lags, factors, two streams of kernels."""
    met = 0
    for seed in [*range(40), *range(1000, 1000 + MORE)]:
        simpy, compiled = both(*drawn(seed))
        assert simpy == compiled, f"seed {seed}"
        met += min(simpy[2].flows_shared, simpy[2].kernels_slowed)
    assert met > 10


@needs_numba
@pytest.mark.skipif(not MORE, reason="some minutes long; set TRAINCAST_DRAWN_GRAPHS to run it")
@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_every_recipe(path: Path) -> None:
    simpy, compiled = (run(path, {"simulation.engine": e}) for e in ("simpy", "compiled"))
    for one, other in ((simpy.timeline, compiled.timeline), (simpy.boost, compiled.boost)):
        assert one.start.tobytes() == other.start.tobytes()
        assert one.end.tobytes() == other.end.tobytes()


def transfers(shares: list[float], memory: float = 5.9) -> tuple[Graph, Machine]:
    """One rank with a kernel of 6 s, beside transfers on streams of their own."""
    b = Builder()
    for k in range(len(shares)):
        b.join([b.add("comm", 0, f"c{k}", Communication("p2p", 1.0 + k, (0, 1), "pp"))])
    b.add("kernel", 0, "compute", Compute("gemm", 6.0, memory))
    graph = b.graph()

    def traffic(work: Communication) -> CommunicationCost:
        return CommunicationCost(0.0, size=work.bytes, hbm=shares[round(work.bytes) - 1])

    def kernel(work: Any) -> tuple[float, float, float]:
        return (work.flops, work.bytes, 0.0)

    machine = table(graph.works, kernel, traffic, np.empty(0), gpu_sms=132)
    return graph, replace(machine, speed=np.ones(len(graph.works)))


@needs_numba
def test_memory_shares_of_many_transfers_have_the_bits_of_fsum() -> None:
    """Their sum is rounded once, which plain additions do not do."""
    random = Random(3)
    for _ in range(20):
        shares = [random.uniform(0.05, 0.14) for _ in range(7)]
        simpy, compiled = both(*transfers(shares))
        assert simpy[2].kernels_slowed >= len(shares)
        assert simpy == compiled


@needs_numba
def test_nothing_is_contracted_to_a_fused_multiply_add() -> None:
    """Where 1 - contention × share, rounded once, has other bits than rounded twice."""
    random, tried = Random(1), 0
    while tried < 20:
        contention, share = random.random(), random.random()
        once = float(1 - Fraction(contention) * Fraction(share))
        if once == 1.0 - contention * share:
            continue
        tried += 1
        graph, machine = transfers([share], memory=0.0)
        simpy, compiled = both(graph, replace(machine, contention=contention))
        assert simpy == compiled


@needs_numba
def test_two_runs_of_a_graph_whose_clocks_power_lowers() -> None:
    """The second run writes over the memory of the first, in which links and GPUs were shared."""
    lowered = 0
    for seed in range(60, 90):
        graph, machine = drawn(seed)
        limits = Limits(power=0.3, window=2.0, exponent=2.0, floor=0.5)
        power = {"tensor": machine.arithmetic, "traffic": machine.memory}
        simpy, compiled = both(graph, replace(machine, limits=limits, **power))
        boosts = [stats.boost for _, _, stats in (simpy, compiled)]
        simpy[2].boost = compiled[2].boost = None
        assert simpy == compiled
        if boosts[0] and boosts[1]:
            lowered += 1
            assert boosts[0].end.tobytes() == boosts[1].end.tobytes()
    assert lowered > 20


@needs_numba
def test_a_deadlock_has_the_same_message() -> None:
    b = Builder()
    work = Communication("p2p", 1.0, (0, 1), "pp")
    crossed = [[b.add("comm", r, s, work) for r, s in ((0, "a"), (1, "b"))] for _ in range(2)]
    first, last = b.add("one", 0, "b", work), b.add("two", 1, "a", work)
    b.wait(crossed[0][0], first)
    b.wait(first, crossed[1][1])
    b.join([crossed[0][1], crossed[1][0]])
    b.join([first, last])
    graph = b.graph()
    hop = CommunicationCost(0.5)
    machine = table(graph.works, lambda _: (0.0, 0.0, 0.0), lambda _: hop, np.empty(0), gpu_sms=1)
    simpy, compiled = both(graph, machine)
    assert simpy[0].startswith(b"deadlock: 4 streams are stuck")
    assert simpy == compiled


@needs_numba
def test_progress_is_told_and_may_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from sim.engine.compiled import run as compiled

    monkeypatch.setattr(compiled, "SLICE", 3)
    graph, machine = drawn(1)
    told = list[tuple[int, int]]()
    simulate(graph, machine, lambda *now: told.append(now), engine="compiled")
    assert told == sorted(told)
    assert len(told) > 3
    assert told[-1] == (len(graph), len(graph))

    def stop(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(graph, machine, stop, engine="compiled")


def test_small_graphs_never_load_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded() -> str:
        raise AssertionError

    monkeypatch.setattr(choice, "missing", loaded)
    assert choice.chosen("auto", choice.PAYS - 1) == ("simpy", "fewer than 200,000 ops")
    assert choice.chosen("simpy", 10 * choice.PAYS) == ("simpy", "asked for")


def test_small_graphs_take_the_compiled_engine_once_a_sweep_has_had_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "_swept", 0)
    monkeypatch.setattr(choice, "missing", str)
    assert choice.chosen("auto", 1000).name == "simpy"
    choice.swept(choice.PAYS - 1000)
    assert choice.chosen("auto", 1000).name == "compiled"
    assert choice.chosen("simpy", 1000).name == "simpy"


def test_without_numba_auto_is_simpy_and_compiled_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "missing", lambda: "No module named 'numba'")
    assert choice.chosen("auto", choice.PAYS).name == "simpy"
    with pytest.raises(InputError, match=r"needs Numba .* install traincast\[fast\]"):
        run(RECIPES[0], {"simulation.engine": "compiled"})
    monkeypatch.setattr(choice, "missing", lambda: "")
    assert choice.chosen("auto", choice.PAYS) == ("compiled", "200,000 ops or more")


@needs_numba
def test_compiled_code_is_kept_where_it_can_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the folder that Numba is told of, else beside the source, else nowhere."""
    from sim.engine.compiled import jit

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert Path(jit.folder()).parent == tmp_path
    monkeypatch.setattr(jit, "writable", lambda path: "__pycache__" in str(path))
    assert Path(jit.folder()).parent == jit.HERE / "__pycache__"
    monkeypatch.setattr(jit, "writable", lambda _: False)
    assert jit.folder() == ""
    monkeypatch.setattr(jit, "FOLDER", "")
    assert jit.entry(lambda h, i, f, n: n > 3).ctypes(None, None, None, 4)
