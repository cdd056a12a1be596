"""What is assumed stands in one file, each value with its range, source and effect."""

import tomllib
from importlib.resources import files

import pytest

from sim.machine import topology
from sim.machine.assumed import assumed
from sim.machine.cluster import Gpu
from traces.calibration import attention

ALL = tomllib.loads((files("sim.machine") / "assumed.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("section", ALL)
def test_each_value_lies_in_its_range_and_says_why(section):
    for entry in ALL[section].values():
        assert entry.keys() == {"value", "range", "source", "affects"}
        low, high = entry["range"]
        assert low <= entry["value"] <= high
        assert entry["source"]
        assert entry["affects"]


def test_attention_is_fitted_with_what_is_assumed(monkeypatch):
    """A kernel taken to be 1.2 times as fast as FlashAttention-2 has 1.2 times its shares."""
    assert assumed("attention") == attention.ASSUMED
    monkeypatch.setattr(attention, "ASSUMED", attention.ASSUMED | {"cudnn_a100": 1.2})
    fits = attention.fit(Gpu(**topology.read("dgx_a100")["gpu"]), "a100")
    for key in ("forward", "backward"):
        slow, fast = (fits[name].constants[key] for name in ("flash2", "cudnn"))
        assert fast == pytest.approx({dim: 1.2 * share for dim, share in slow.items()})
