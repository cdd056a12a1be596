"""Fits the constants of a topology file to measured kernels and collectives, never to step times.

:func:`calibrate` is what ``traincast calibrate GPU`` runs. GEMM and NCCL rows are those of the PyPI
package aiconfigurator-core; attention and memory-bound kernels are figures written down, with their
sources, in ``traces/calibration``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import topologies
from schedules.input_error import InputError
from sim.files import write_text
from sim.machine import topology
from sim.machine.attention_tables import attention_constants
from sim.machine.cluster import Gpu
from sim.machine.kernels import GemmConstants
from traces.calibration import attention, collectives, gemm, memory, network, sustained
from traces.calibration import tables as measured
from traces.calibration.errors import Fit, FitError
from traces.calibration.under_load import UnderLoad

UNITS = {"fixed": (1e6, "us"), "derating_seconds": (1e3, "ms")} | dict.fromkeys(
    ("rated", "cap", "idle"), (1.0, "W")
)
SIMPLE, LOW_LATENCY = 4 * 2**20, 2**20  # bytes: NCCL's protocols are fitted above and below these


SOURCES = {
    "gemm": "traincast calibrate; gemm_perf of {package}, {folder}, SGLang and TRTLLM, on random "
    "data; at boost clock, derating: in long bursts; accumulate: A100 pairs in "
    "traces/calibration/accumulate.py",
    "fp8": "traincast calibrate; gemm_perf of {package}, {folder}, TRTLLM, less the quantisation "
    "that its rows include; at boost clock, derating: in long bursts; accumulate, memory, fixed: "
    "as bf16",
    "attention": "flash: Transformer Engine's order of backends, FlashAttention below compute "
    "capability 9.0 and cuDNN from there; sdpa: PyTorch up to 2.10 (aten/src/ATen/native/"
    "transformers/cuda/sdp_utils.cpp) and torchtitan's models/attention.py, cuDNN first on B200",
    "kernel": "traincast calibrate; {figures}",
    "memory_kernels": "traincast calibrate; kernels with their sources in "
    "traces/calibration/memory_kernels.csv, else A100's",
}


class GpuKind(NamedTuple):
    """What belongs to a kind of GPU: topology, folder of tables, dtypes by the tables' names."""

    topology: str
    folder: str
    dtypes: Mapping[str, str]
    curves: str  # the kind whose published figures of attention are taken
    in_switch: bool  # whether NVSwitch adds up the all-reduces of 8 GPUs


BF16 = {"bf16": "bfloat16"}
BOTH = {**BF16, "fp8": "fp8"}
KINDS = {
    "a100": GpuKind("dgx_a100", "a100_sxm", BF16, "a100", in_switch=False),
    "h100": GpuKind("dgx_h100", "h100_sxm", BOTH, "h100", in_switch=True),
    "h200": GpuKind("dgx_h200", "h200_sxm", BOTH, "h100", in_switch=True),
    "b200": GpuKind("dgx_b200", "b200_sxm", BOTH, "b200", in_switch=True),
}


@dataclass(frozen=True)
class Calibration:
    """Fitted tables of ``[gpu]``, fits of collectives that a person copies, and all errors."""

    gpu: str
    constants: Mapping[str, Mapping[str, Any]]
    collectives: Mapping[str, Mapping[str, float]]
    errors: tuple[FitError, ...]
    load: UnderLoad | None = None
    """What a recording under load says of the clock, power and contention."""

    def toml(self) -> str:
        """Return the fitted tables as they stand in the topology file."""
        out = []
        for name, values in self.constants.items():
            out.append(f"[gpu.{name}]" if name else "[gpu]")
            out += [f"{key} = {_written(key, value)}" for key, value in values.items()]
            out.append("")
        return "\n".join(out)

    def write(self, path: Path | None = None) -> Path:
        """Write the fitted tables into a topology file, in place of its own; return its path."""
        if path is None:
            path = Path(topologies.__file__).parent / f"{KINDS[self.gpu].topology}.toml"
        text = replace(path.read_text(encoding="utf-8"), self.toml())
        return write_text(path, text)


def calibrate(gpu: str, tables: Path | None = None) -> Calibration:
    """Fit everything for one kind of GPU from the installed tables, or those in a folder.

    Raises InputError when the kind is not known or its tables are not there.
    """
    if gpu not in KINDS:
        raise InputError(f"no calibration for GPU {gpu!r}; there are {', '.join(KINDS)}")
    kind = KINDS[gpu]
    folder = (tables or measured.installed()) / kind.folder
    if not folder.is_dir():
        raise InputError(f"no folder {kind.folder} of tables in {folder.parent}")
    machine = topology.read(kind.topology)
    target = Gpu(**machine["gpu"], costs=machine["costs"])
    fits = _gemms(target, gpu, folder)
    fits |= _attention(target, kind, folder)
    fits["memory_kernels"] = memory.of(gpu)
    wires = _collectives(folder, machine["node"]["link"]["bandwidth"], kind.in_switch)
    errors = [error for fit in (*fits.values(), *wires.values()) for error in fit.errors]
    errors += network.check() if gpu == "h100" else ()
    constants = {
        name: {**fit.constants, "source": _source(name, kind)} for name, fit in fits.items()
    }
    return Calibration(gpu, constants, {k: f.constants for k, f in wires.items()}, tuple(errors))


def _source(name: str, kind: GpuKind) -> str:
    family = "fp8" if name == "gemm.fp8" else name.partition(".")[0]
    kernel = name.partition("attention.")[2]
    figures = attention.SOURCES.get((kind.curves, kernel), "")
    family = "kernel" if kernel else family
    return SOURCES[family].format(package=measured.PACKAGE, folder=kind.folder, figures=figures)


def _gemms(target: Gpu, gpu: str, folder: Path) -> dict[str, Fit]:
    """Return fits by dtype; those after the first take from it what their rows do not tell."""
    out: dict[str, Fit] = {}
    for dtype, name in KINDS[gpu].dtypes.items():
        first = next(iter(out.values()), None)
        rows = measured.gemm_rows(folder, name)
        fit = gemm.fit(target, dtype, rows, GemmConstants(**first.constants) if first else None)
        seen = gemm.check(target, gpu, dtype, GemmConstants(**fit.constants))
        if (gpu, dtype) == ("a100", "bf16"):
            seen += (sustained.check(target, GemmConstants(**fit.constants)),)
        if (gpu, dtype) == ("b200", "bf16"):
            found, of_it = sustained.derating(target, GemmConstants(**fit.constants))
            fit, seen = Fit({**fit.constants, "derating": found}, fit.errors), (*seen, *of_it)
        out[f"gemm.{dtype}"] = Fit(fit.constants, (*fit.errors, *seen))
    return out


def _attention(target: Gpu, kind: GpuKind, folder: Path) -> dict[str, Fit]:
    """Return which kernel is taken by whom, and fits by kernel; inference's kernels are a check."""
    fits = attention.fit(target, kind.curves)
    chosen = attention.CHOSEN[kind.curves]
    usual = attention_constants({k: fit.constants for k, fit in fits.items()}, chosen["flash"])
    seen = attention.check(target, usual, *measured.attention_rows(folder))
    first = {"attention": Fit(chosen, ())}
    first |= {f"attention.{kernel}": fit for kernel, fit in fits.items()}
    last = f"attention.{chosen['flash']}"
    return first | {last: Fit(first[last].constants, (*first[last].errors, seen))}


def _collectives(folder: Path, nominal: float, in_switch: bool) -> dict[str, Fit]:
    """Return fits by "collective protocol"; 8-GPU all-reduces in NVSwitch stand apart."""
    out = {}
    for name, called in collectives.FITTED.items():
        rows = measured.nccl_rows(folder, called)
        apart = in_switch and name == "all_reduce"
        parts = {name: (rows.gpus < 8) | (not apart)}
        if apart:
            parts[f"{name} in-switch"] = rows.gpus == 8
        for label, mask in parts.items():
            for protocol, sizes in (
                ("simple", rows.bytes >= SIMPLE),
                ("low latency", rows.bytes <= LOW_LATENCY),
            ):
                part = collectives.CollectiveRows(*(c[mask & sizes] for c in rows))
                fit = collectives.fit_collective(name, part, nominal)
                errors = tuple(e._replace(family=f"{label}, {protocol}") for e in fit.errors)
                out[f"{label}, {protocol}"] = Fit(fit.constants, errors)
    return out


def replace(text: str, fitted: str) -> str:
    """Return a topology file with these fitted tables, where its first fitted table stood.

    A file that has none gets them before ``[node]``.

    >>> print(replace("[gpu.gemm.bf16]\\nfixed = 1\\n[node]\\n", "[gpu.attention]\\nx = 2"))
    [gpu.attention]
    x = 2
    <BLANKLINE>
    [node]
    <BLANKLINE>
    """
    ours = re.compile(r"\[gpu\.(gemm|attention|memory_kernels)\b")
    blocks = re.split(r"(?m)^(?=\[)", text)
    first = next((i for i, block in enumerate(blocks) if ours.match(block)), None)
    if first is None:
        first = next((i for i, b in enumerate(blocks) if b.startswith("[node]")), len(blocks))
    before = [block for block in blocks[:first] if not ours.match(block)]
    after = [block for block in blocks[first:] if not ours.match(block)]
    return "".join([*before, fitted.rstrip("\n") + "\n\n", *after])


def _written(key: str, value: float | str | Mapping[str, float]) -> str:
    """Return a constant to four digits, seconds with their unit, a source in quotes."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{size} = {_written(key, v)}' for size, v in value.items())} }}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    scale, unit = UNITS.get(key, (1.0, ""))
    return f'"{value * scale:.4g} {unit}"' if unit else f"{value:.4g}"
