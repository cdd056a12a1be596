"""Reads a GPU's clock, power and temperature, which its driver tells through NVML.

NVIDIA's own binding (PyPI: nvidia-ml-py) is needed for that, and is there with
``traincast[record]``. Nothing is ever set.
"""

from __future__ import annotations

from typing import Any


class UnreadableError(Exception):
    """Nothing can be read; the message says why, in one sentence."""


class Gauge:
    """The sensors of one GPU."""

    def __init__(self, device: str) -> None:
        """Find the GPU that torch calls ``device``, such as "cuda:0".

        Raises UnreadableError without the binding, the driver, or leave to ask it.
        """
        if device == "cpu":
            raise UnreadableError("there is no GPU whose clock and power could be read")
        try:
            import pynvml
        except ImportError:
            raise UnreadableError(
                "clock, power and temperature need nvidia-ml-py; install traincast[record]"
            ) from None
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            self._gpu = pynvml.nvmlDeviceGetHandleByUUID(_uuid(device))
            self.limit = pynvml.nvmlDeviceGetEnforcedPowerLimit(self._gpu) / 1e3
            """Watts that the GPU may draw."""
            self.read()
        except (pynvml.NVMLError, AttributeError) as error:
            raise UnreadableError(_said(error)) from None

    def read(self) -> dict[str, float]:
        """Return the clock of the SMs in Hz, the power in watts and the temperature in °C.

        Many GPUs give the mean power of the last second. Raises UnreadableError.
        """
        nvml, gpu = self._nvml, self._gpu
        try:
            return {
                "sm_hz": nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) * 1e6,
                "power_w": nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
                "celsius": float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
            }
        except nvml.NVMLError as error:
            raise UnreadableError(_said(error)) from None


def _uuid(device: str) -> str:
    """Return NVML's name of a GPU, as indices of the two differ with CUDA_VISIBLE_DEVICES."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def _said(error: Exception) -> str:
    return f"NVML does not tell clock and power: {error}"
