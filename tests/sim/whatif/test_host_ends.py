"""What the ranges of the host's prices do to a step: against simulations of other prices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sim.analysis.critical_path import critical_path
from sim.machine import host_prices
from sim.machine.assumed import ranges
from sim.machine.host_prices import CLASSES, KERNELS, TRANSFERS, HostPrices
from sim.runs import run as runs
from sim.runs.hosted import Issuer, issuer
from sim.runs.run import Result, run
from sim.whatif import host_ends
from sim.whatif.host_ends import host_moves

RECIPE = Path(__file__).parents[3] / "validation/recipes/vtrain_gpt.toml"
SMALL = {
    "simulation.host": "megatron", "simulation.clock": "boost", "model.layers": 2,
    "model.hidden": 1024, "model.heads": 16, "model.sequence": 1024, "cluster.gpus": 4,
    "parallelism.tp": 2, "parallelism.dp": 2, "training.micro_batch": 1,
    "training.global_batch": 4,
}  # fmt: skip
JOBS = [
    SMALL | {"simulation.host": way} | job
    for way in ("megatron", "eager", "compiled", "graphs")
    for job in (
        {},
        {"parallelism.tp": 1, "parallelism.pp": 2},
        {"parallelism.tp": 1, "parallelism.dp": 4, "training.micro_batch": 2,
         "training.global_batch": 16},
    )
]  # fmt: skip


def longer(prices: HostPrices, kernels: float, back: float, transfers: float) -> HostPrices:
    """Prices with factors by class; each pass enters a layer as its kernels are issued."""
    of = dict.fromkeys(KERNELS, kernels) | dict.fromkeys(TRANSFERS, transfers)
    passes = (prices.forward, of), (prices.backward, of | dict.fromkeys(KERNELS, back))
    forward, backward = ({k: by[k] * some[k] for k in CLASSES} for by, some in passes)
    layer = (prices.layer[0] * kernels, prices.layer[1] * back)
    return replace(prices, forward=forward, backward=backward, layer=layer)


FACTORS = {
    "host.speed": lambda f: (f, f, f),
    "host.backward": lambda f: (1.0, f, 1.0),
    "host.transfers": lambda f: (1.0, 1.0, f),
}


def with_prices(monkeypatch: pytest.MonkeyPatch, job: dict, factors: tuple) -> Result:
    """The job with a host whose prices are other ones: its graph is built from them."""

    def other(recipe):
        usual = issuer(recipe)
        return Issuer(longer(usual.prices, *factors), always=True)

    monkeypatch.setattr(runs, "issuer", other)
    return run(RECIPE, job)


def agree(monkeypatch: pytest.MonkeyPatch, job: dict) -> None:
    usual = with_prices(monkeypatch, job, (1.0, 1.0, 1.0))
    found = host_moves(critical_path(usual.timeline), usual.machine, usual.boost)
    assert found.keys() == FACTORS.keys()
    for name, both in found.items():
        for value, first in zip(ranges()[name][1:], both, strict=True):
            real = with_prices(monkeypatch, job, FACTORS[name](value)).timeline.seconds
            assert first == pytest.approx(real - usual.timeline.seconds, abs=1e-9), (name, value)


def test_a_range_moves_the_step_as_prices_at_its_ends_do(monkeypatch):
    agree(monkeypatch, SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_ranges_move_steps_as_prices_at_their_ends_do(job, monkeypatch):
    """Whether every step waits for the host, or some or none; twelve jobs, four ways to run."""
    agree(monkeypatch, job)


def test_of_a_large_graph_what_is_on_the_critical_path_counts(monkeypatch):
    """A step that waits for its host throughout: its ends are those of the simulation."""
    ran = run(RECIPE, SMALL)
    path = critical_path(ran.timeline)
    simulated = host_moves(path, ran.machine, ran.boost)
    monkeypatch.setattr(host_ends, "MOST_OPS", 0)
    found = host_moves(path, ran.machine, ran.boost)
    step = ran.timeline.seconds
    for name, both in found.items():
        assert both == pytest.approx(simulated[name], abs=0.005 * step), name
    low, high = found["host.speed"]
    of = ranges()["host.speed"]
    assert [low, high] == pytest.approx(
        [path.seconds["host"] * (end - 1.0) for end in of[1:]], rel=1e-12
    )


def test_a_host_of_known_prices_has_no_range(tmp_path):
    """A recorded one and one of launch_us; the same prices, built in, make the interval wider."""
    prices = host_prices.ways()["megatron"]
    table = {
        "launch": 1.0, "forward": {k: prices.forward[k] for k in KERNELS},
        "backward": {k: prices.backward[k] for k in KERNELS},
        "transfers": {k: prices.forward[k] for k in TRANSFERS},
    }  # fmt: skip
    (tmp_path / "own.json").write_text(json.dumps({"host": table}))
    built_in = run(RECIPE, SMALL)
    own = run(RECIPE, SMALL | {"simulation.host": str(tmp_path / "own.json")})
    assert own.timeline.seconds == pytest.approx(built_in.timeline.seconds, rel=1e-12)
    ends = [of.summary["interval_s"] for of in (own, built_in)]
    widths = [(high - low) / built_in.timeline.seconds for low, high in ends]
    assert widths[0] < 0.02
    assert widths[1] > 0.3
