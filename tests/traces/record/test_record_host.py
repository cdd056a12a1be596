"""What the host costs: torch's own dispatcher counts, and a measurement that a recipe takes."""

from __future__ import annotations

import importlib.util
import itertools
import json
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from sim.machine.host_prices import CLASSES, prices
from sim.runs.run import run

pytestmark = [
    pytest.mark.slow,  # loads torch
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]
RECIPE = Path(__file__).parents[3] / "validation/recipes/vtrain_gpt.toml"
SMALL = {
    "model.layers": 2, "model.hidden": 256, "model.heads": 4, "model.sequence": 256,
    "cluster.gpus": 1, "parallelism.tp": 1, "parallelism.dp": 1, "training.micro_batch": 1,
    "training.global_batch": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    from traces.record import host

    path = tmp_path_factory.mktemp("host") / "host.json"
    result = host.record()
    path.write_text(json.dumps(result))
    return path, result


def test_eager_stands_for_as_many_operators_as_torch_dispatches(found: Any) -> None:
    """A row of the built-in table, for what PyTorch has one kernel for."""
    counts = found[1]["operators"]
    text = (files("sim.machine") / "host_prices.toml").read_text(encoding="utf-8")
    eager = tomllib.loads(text)["eager"]
    for kind in ("gemm", "attention", "norm", "elementwise", "softmax", "embedding"):
        assert eager["forward"][kind] == counts[kind][0]
    for kind in ("elementwise", "softmax"):
        assert eager["backward"][kind] == 1.12 * counts[kind][1]


def test_a_measured_host_issues_a_step(found: Any) -> None:
    """Every class has a price; kernels of several operators cost more than those of one."""
    path, result = found
    measured = prices(str(path))
    assert result["device"] == "cpu"
    for by in (measured.forward, measured.backward):
        assert by.keys() == set(CLASSES)
        assert all(0.0 < by[kind] < 0.1 for kind in CLASSES if kind != "reduce")
    assert measured.backward["norm"] > measured.forward["softmax"]
    assert measured.forward["gather"] > measured.forward["norm"]
    step = run(RECIPE, SMALL | {"simulation.host": str(path)})
    assert step.summary["host"] | {"simulated": True, "prices": "host"} == step.summary["host"]


def test_a_slow_phase_of_the_processor_hides_no_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first 8 of 18 measurements take 4 times as long, as beside other work."""
    from traces.record import host_run
    from traces.record.host_modules import cases
    from traces.record.workers import Here

    begun = itertools.count()
    seconds = {"forward": 1.0, "both": 3.0}
    monkeypatch.setattr(
        host_run, "once", lambda _, run: seconds[run.__name__] * (4.0 if next(begun) < 8 else 1.0)
    )
    here = Here(0, 1, "cpu", Path())
    norm = next(case for case in cases(here) if case.kind == "norm")
    assert [16 * found for found in host_run.passes(here, norm)] == [1.0, 2.0]


def test_seconds_are_those_of_the_processor() -> None:
    """A run that sleeps costs nothing; one that computes costs what its thread took."""
    import time

    from traces.record.host_run import issued
    from traces.record.workers import Here

    here = Here(0, 1, "cpu", Path())

    def busy() -> None:
        until = time.thread_time() + 2e-3
        while time.thread_time() < until:
            pass

    assert issued(here, lambda: time.sleep(0.005)) < 1e-3
    assert issued(here, busy) == pytest.approx(2e-3, rel=0.2)
