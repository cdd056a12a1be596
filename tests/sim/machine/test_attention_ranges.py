"""Attention with another assumed value: as calibration itself would fit it."""

from __future__ import annotations

import pytest

from sim.machine import cluster, topology
from sim.machine.assumed import ranges
from sim.machine.attention_ranges import RULES, with_attention
from sim.machine.cluster import Gpu
from traces.calibration import attention

KIND = {"dgx_a100": "a100", "dgx_h100": "h100", "dgx_b200": "b200"}
CASES = [
    (name, of, value)
    for name, rule in RULES.items()
    for of in rule.topologies
    for value in ranges()[f"attention.{name}"][1:]
]


def refitted(gpu: Gpu, kind: str, name: str, value: float, monkeypatch: pytest.MonkeyPatch):
    """What calibration fits with this value in place of the assumed one."""
    monkeypatch.setattr(attention, "ASSUMED", attention.ASSUMED | {name: value})
    known = {"triton_backward": "triton", "flash2_a100_backward": "flash2"}
    if name in known:
        monkeypatch.setitem(attention.BACKWARD, known[name], value)
    if name == "cudnn_b200_backward_64":
        monkeypatch.setattr(attention, "SMALL", (attention.SMALL[0], value))
    return attention.fit(gpu, kind)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "of", "value"), CASES)
def test_shares_are_those_of_a_second_fit(name, of, value, monkeypatch):
    """Forward and backward within 2 %: the fit moves its other constants too."""
    machine = topology.read(of)
    gpu = Gpu(**machine["gpu"], costs=machine["costs"])
    changed = with_attention(gpu, name, value, ranges()[f"attention.{name}"].value)
    fitted = refitted(gpu, KIND[of], name, value, monkeypatch)
    assert changed is not gpu
    for kernel in RULES[name].kernels:
        table, usual = (g.costs["attention"][kernel] for g in (changed, gpu))
        for phase in ("forward", "backward"):
            expected = fitted[kernel].constants[phase]
            assert table[phase] == pytest.approx(expected, rel=0.02), kernel
        assert (table["forward"], table["backward"]) != (usual["forward"], usual["backward"])


def test_a_gpu_with_tables_of_its_own_keeps_them():
    own = cluster.load("dgx_a100", 8).gpu
    tables = {
        kernel: dict(table)
        for kernel, table in own.costs["attention"].items()
        if kernel == "triton"
    }
    tables["triton"]["forward"] = {"64": 0.5, "128": 0.5}
    mine = Gpu(own.name, 1, 1.0, 1.0, own.peak, costs={"attention": tables})
    assert with_attention(mine, "triton_backward", 0.6, 0.75) is mine
    assert with_attention(own, "triton_h100", 0.7, 1.0) is own


def test_every_assumed_value_of_attention_has_a_rule():
    names = {name.removeprefix("attention.") for name in ranges() if name.startswith("attention.")}
    assert names == RULES.keys()
