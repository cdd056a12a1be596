"""Reads measured times from the tables of the PyPI package aiconfigurator-core.

They lie under ``systems/data/GPU/FAMILY/FRAMEWORK/VERSION/*.parquet``; times are milliseconds, NCCL
message sizes are counted in elements.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from schedules.input_error import InputError
from sim.graph import Floats
from traces.calibration.collectives import CollectiveRows

PACKAGE = "aiconfigurator-core 0.12.0"


LAUNCHES = {"SGLang": 36, "TRTLLM": 6}
"""How often each framework launched a product back to back, by its collector's code, on random
data. vLLM's rows (6 launches) multiply by weights that were never filled, zeros, which take less
power and so clock higher: they are left out."""
TRUSTED = {"bfloat16": ("SGLang", "TRTLLM"), "fp8": ("TRTLLM",)}
"""The frameworks whose rows are fitted. Those of fp8 differ by up to a factor of two, as each times
other kernels of quantisation with them: one source counts until another agrees."""


class GemmRows(NamedTuple):
    """Products as one framework timed them: sizes, seconds of one, and seconds of the whole burst.

    ``burst`` is how long products ran back to back: seconds of one times launches.
    """

    m: Floats
    n: Floats
    k: Floats
    seconds: Floats
    burst: Floats
    spread: Floats  # standard deviation of log seconds over frameworks, NaN if there is only one


def installed() -> Path:
    """Return the folder of tables of the installed package.

    Raises InputError when it is not installed.
    """
    spec = find_spec("aiconfigurator_core")
    if spec is None or spec.origin is None:
        raise InputError(
            "aiconfigurator-core is not installed; install traincast[calibrate] or give --tables"
        )
    return Path(spec.origin).parent / "systems" / "data"


def read(directory: Path, pattern: str) -> pd.DataFrame:
    """Return all tables below ``directory`` that match, in order of their names, as one."""
    files = sorted(directory.glob(pattern))
    if not files:
        raise InputError(f"no table {pattern} in {directory}")
    return pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)


def gemm_rows(gpu: Path, dtype: str) -> GemmRows:
    """Return multiplications of one dtype (bfloat16, fp8) on one GPU, on random data.

    A framework's newest version counts, once for each product.
    """
    rows = read(gpu, "gemm/*/*/gemm_perf.parquet")
    rows = rows[(rows["gemm_dtype"] == dtype) & rows["framework"].isin(TRUSTED[dtype])]
    rows = rows[rows["version"] == rows.groupby("framework")["version"].transform("max")]
    keys = ["m", "n", "k", "framework"]
    mean = rows.groupby(keys, as_index=False)["latency"].mean()
    seconds = mean["latency"].to_numpy(np.float64) * 1e-3
    burst = seconds * mean["framework"].map(LAUNCHES).to_numpy(np.float64)
    log = pd.Series(np.log(seconds))
    spread = log.groupby([mean[c] for c in keys[:3]]).transform("std")
    m, n, k = (mean[c].to_numpy(np.float64) for c in keys[:3])
    return GemmRows(m, n, k, seconds, burst, spread.to_numpy(np.float64))


def take(rows: GemmRows, mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> GemmRows:
    """Return the rows where ``mask`` is true."""
    return GemmRows(*(column[mask] for column in rows))


def attention_rows(gpu: Path) -> tuple[Floats, Floats, Floats]:
    """Return causal prefill attention with head dimension 128, from 1,024 tokens.

    There are as many key as query heads. Returns (batch · heads, sequence, seconds of the fastest
    framework), each of shape (rows,).
    """
    rows = read(gpu, "attention/*/*/context_attention_perf.parquet")
    rows = rows.assign(isl=rows["isl"].astype(int), heads=rows["batch_size"] * rows["num_heads"])
    whole = (rows["num_heads"] == rows["num_key_value_heads"]) & (rows["step"].astype(int) == 0)
    plain = (rows["attn_dtype"] == "bfloat16") & (rows["kv_cache_dtype"] == "bfloat16")
    unlimited = rows["window_size"].fillna(0) == 0
    rows = rows[whole & plain & unlimited & (rows["head_dim"] == 128) & (rows["isl"] >= 1024)]
    fastest = rows.groupby(["heads", "isl"])["latency"].min().reset_index()
    heads, s, ms = (fastest[c].to_numpy(np.float64) for c in ("heads", "isl", "latency"))
    return heads, s, ms * 1e-3


def nccl_rows(gpu: Path, collective: str) -> CollectiveRows:
    """Return one collective of 16-bit elements inside a node, by the newest NCCL with a table."""
    newest = max(gpu.glob("comm/nccl/*/nccl_perf.parquet"), key=lambda file: _version(file.parent))
    rows = pd.read_parquet(newest)
    rows = rows[(rows["op_name"] == collective) & (rows["nccl_dtype"] == "half")]
    gpus, elements, ms = (
        rows[c].to_numpy(np.float64) for c in ("num_gpus", "message_size", "latency")
    )
    return CollectiveRows(gpus, elements * 2, ms * 1e-3)


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.name.split("."))
