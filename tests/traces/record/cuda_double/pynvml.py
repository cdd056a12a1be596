"""NVML on the GPU that is not there.

It has what the recorder uses of PyPI's nvidia-ml-py, with its units: MHz, mW and °C.
"""

from __future__ import annotations

import cuda_double

NVML_CLOCK_SM = 1
NVML_TEMPERATURE_GPU = 0


class NVMLError(Exception):
    pass


def nvmlInit():  # noqa: N802
    pass


def nvmlDeviceGetHandleByUUID(uuid):  # noqa: N802
    assert uuid == f"GPU-{cuda_double.UUID}"
    return cuda_double.gpus[-1]


def nvmlDeviceGetEnforcedPowerLimit(gpu):  # noqa: N802
    return round(gpu.load.of.get("cap", 700.0) * 1e3)


def nvmlDeviceGetPowerUsage(gpu):  # noqa: N802
    return round(gpu.load.watts(gpu.host) * 1e3) if gpu.load.of else 0


def nvmlDeviceGetClockInfo(gpu, type):  # noqa: A002, N802
    assert type == NVML_CLOCK_SM
    clock = gpu.load.clock(gpu.host - gpu.load.begin) if gpu.load.of else 1.0
    return round(cuda_double.gpu_load.BOOST * clock / 1e6)


def nvmlDeviceGetTemperature(gpu, sensor):  # noqa: N802
    assert sensor == NVML_TEMPERATURE_GPU
    return 60
