"""How fast are products on a GPU that trains for hours? Measured apart from short bursts.

SimuMax's products (``simumax_products.csv``) were timed on GPUs that were training. Those of an
A100 on a board of 300 W are never fitted: the constants of the 400 W board, at the clock that its
power model gives at 300 W, have to meet them. The bursts of the B200's tables are too short to heat
it to where training runs, so its derating is that of every second product here; the others are held
out.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from io import StringIO

import numpy as np
import pandas as pd

from sim.graph import Floats
from sim.machine.cluster import Gpu
from sim.machine.kernels import GemmConstants
from sim.machine.power import held
from traces.calibration.errors import FitError, fit_error
from traces.calibration.gemm import predict

PCIE_BANDWIDTH = 1935e9  # B/s, NVIDIA A100 PCIe 80 GB datasheet
PCIE_CAP = 300.0  # W, the same
BOTH = ("TN", "NN")  # layouts without an addition to fp32


def rows(gpu: str) -> pd.DataFrame:
    """Return the products of one kind of GPU: layout, m, n, k, tflops."""
    text = (files("traces.calibration") / "simumax_products.csv").read_text(encoding="utf-8")
    table = pd.read_csv(StringIO(text), comment="#")
    return table[(table["gpu"] == gpu) & table["layout"].isin(BOTH)].reset_index(drop=True)


def derating(gpu: Gpu, c: GemmConstants) -> tuple[float, tuple[FitError, ...]]:
    """Return the derating that every second product shows, and the errors of both halves."""
    table = rows("b200")
    boost, measured = _boost(gpu, c, table), _seconds(table)
    fitted = np.arange(len(table)) % 2 == 0
    found = float(np.median(measured[fitted] / boost[fitted])) - 1.0
    times = boost * (1.0 + found)
    name = "gemm bf16: products of a B200 that trains (SimuMax, {})"
    parts = (("every second, derating", fitted), ("check, the others", ~fitted))
    return found, tuple(fit_error(name.format(n), times[k], measured[k]) for n, k in parts)


def check(gpu: Gpu, c: GemmConstants) -> FitError:
    """Return how far the constants of a 400 W A100 are off on a board of 300 W that trains."""
    table = rows("a100")
    board = {**gpu.costs["power"], "cap": PCIE_CAP}
    pcie = replace(gpu, memory_bandwidth=PCIE_BANDWIDTH, costs={**gpu.costs, "power": board})
    times = _boost(pcie, c, table) / held(pcie, c.derating)
    return fit_error("check, gemm: products of an A100 of 300 W (SimuMax)", times, _seconds(table))


def _boost(gpu: Gpu, c: GemmConstants, table: pd.DataFrame) -> Floats:
    m, n, k = (table[name].to_numpy(np.float64) for name in "mnk")
    return predict(gpu, "bf16", c, 1.0, m, n, k)


def _seconds(table: pd.DataFrame) -> Floats:
    m, n, k, rate = (table[name].to_numpy(np.float64) for name in ("m", "n", "k", "tflops"))
    seconds: Floats = 2e-12 * m * n * k / rate
    return seconds
