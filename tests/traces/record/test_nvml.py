"""Sensors of a GPU: read where NVML lets us, and one sentence where not."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from traces.record import nvml
from traces.record.nvml import Gauge, UnreadableError


class Refused(Exception):  # noqa: N818  NVMLError, as the binding calls it
    pass


def binding(**other: Any) -> types.SimpleNamespace:
    """The part of nvidia-ml-py that is used, of one GPU."""
    usual = {
        "NVMLError": Refused, "NVML_CLOCK_SM": 1, "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 700_000,
        "nvmlDeviceGetClockInfo": lambda gpu, kind: 1755,
        "nvmlDeviceGetPowerUsage": lambda gpu: 688_123,
        "nvmlDeviceGetTemperature": lambda gpu, kind: 64,
    }  # fmt: skip
    return types.SimpleNamespace(**usual | other)


@pytest.fixture(autouse=True)
def uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_uuid", lambda device: f"GPU-{device}")


def test_values_are_in_si_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", binding())
    gauge = Gauge("cuda:0")
    assert gauge.limit == 700.0
    assert gauge.read() == {"sm_hz": 1755e6, "power_w": 688.123, "celsius": 64.0}


def refuses(*_: object) -> None:
    raise Refused("Insufficient Permissions")


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (None, "need nvidia-ml-py; install traincast[record]"),
        (binding(nvmlInit=refuses), "NVML does not tell clock and power: Insufficient Permissions"),
        (binding(nvmlDeviceGetPowerUsage=refuses), "clock and power: Insufficient Permissions"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, module: object, why: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with pytest.raises(UnreadableError, match=r".") as error:
        Gauge("cuda:0")
    assert str(error.value).endswith(why)
    with pytest.raises(UnreadableError, match="no GPU"):
        Gauge("cpu")
