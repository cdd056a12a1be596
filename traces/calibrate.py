"""Measured kernels and collectives in, constants of a topology file out: never step times.

:func:`calibrate` is what ``traincast calibrate GPU`` runs. GEMM and NCCL rows are those of the PyPI
package aiconfigurator-core; attention and memory-bound kernels are figures written down, with their
sources, in ``traces/calibration``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import topologies
from sim import topology
from sim.cluster import Gpu
from sim.kernels import Attention, Gemm
from traces.calibration import attention, collectives, gemm, memory
from traces.calibration import tables as measured
from traces.calibration.errors import Fit, FitError

SIMPLE, LOW_LATENCY = 4 * 2**20, 2**20  # bytes: NCCL's protocols are fitted above and below these


SOURCES = {
    "gemm": "traincast calibrate; gemm_perf of {package}, {folder}, all frameworks; accumulate: "
    "A100 pairs in traces/calibration/accumulate.py",
    "attention": "traincast calibrate; published figures in traces/calibration/attention.py",
    "memory_kernels": "traincast calibrate; recorded A100 kernels in traces/calibration/memory.py",
}


REPORT = f"""# How well the constants fit

Made by `traincast calibrate a100 --write` and `traincast calibrate h100 --write` from
{measured.PACKAGE} and the figures in `traces/calibration`; no step time went in.
Errors are of predicted against measured time: mean of the absolute error, mean signed error, 90th
percentile, maximum. GEMM rows: m from 1,024, n and k from 512, m in whole tiles. Rows that begin
with "check" were not fitted. A kind with one row is read off that row, so it fits exactly. Kernels
of norm, softmax, embedding, cross entropy and optimizer are A100 ones and serve the H100 as well.
"""
COLLECTIVES = """Inside a node: time = base + rounds · hop + wire bytes / (nominal · share).
"simple" is fitted from 4 MiB up, "low latency" up to 1 MiB.
"""


class Kind(NamedTuple):
    """Where a kind of GPU is found: topology, folder of tables, dtypes by the tables' names."""

    topology: str
    folder: str
    dtypes: Mapping[str, str]


KINDS = {
    "a100": Kind("dgx_a100", "a100_sxm", {"bf16": "bfloat16"}),
    "h100": Kind("dgx_h100", "h100_sxm", {"bf16": "bfloat16"}),
}


@dataclass(frozen=True)
class Calibration:
    """Fitted tables of ``[gpu]``, fits of collectives that a person copies, and all errors."""

    gpu: str
    constants: Mapping[str, Mapping[str, Any]]
    collectives: Mapping[str, Mapping[str, float]]
    errors: tuple[FitError, ...]

    def toml(self) -> str:
        """The fitted tables as they stand in the topology file."""
        out = []
        for name, values in self.constants.items():
            out.append(f"[gpu.{name}]")
            out += [f"{key} = {_written(key, value)}" for key, value in values.items()]
            out.append("")
        return "\n".join(out)

    def write(self, path: Path | None = None) -> Path:
        """Put the fitted tables into a topology file, in place of those it has; return its path."""
        if path is None:
            path = Path(topologies.__file__).parent / f"{KINDS[self.gpu].topology}.toml"
        text = replace(path.read_text(encoding="utf-8"), self.toml())
        path.write_text(text, encoding="utf-8")
        return path


def calibrate(gpu: str, tables: Path | None = None) -> Calibration:
    """Fit everything for one kind of GPU from the installed tables, or those in a folder.

    ValueError when the kind is not known or its tables are not there.
    """
    if gpu not in KINDS:
        raise ValueError(f"no calibration for GPU {gpu!r}; there are {', '.join(KINDS)}")
    kind = KINDS[gpu]
    folder = (tables or measured.installed()) / kind.folder
    if not folder.is_dir():
        raise ValueError(f"no folder {kind.folder} of tables in {folder.parent}")
    machine = topology.read(kind.topology)
    target = Gpu(**machine["gpu"])
    fits = {f"gemm.{dtype}": _gemm(target, gpu, dtype, folder) for dtype in kind.dtypes}
    fits["attention"] = _attention(target, gpu, folder)
    fits["memory_kernels"] = memory.fit()
    wires = _collectives(folder, machine["node"]["link"]["bandwidth"])
    errors = tuple(error for fit in (*fits.values(), *wires.values()) for error in fit.errors)
    constants = {
        name: {**fit.constants, "source": _source(name, kind.folder)} for name, fit in fits.items()
    }
    return Calibration(gpu, constants, {k: f.constants for k, f in wires.items()}, errors)


def _source(name: str, folder: str) -> str:
    family = name.partition(".")[0]
    return SOURCES[family].format(package=measured.PACKAGE, folder=folder)


def _gemm(target: Gpu, gpu: str, dtype: str, folder: Path) -> Fit:
    fit = gemm.fit(target, dtype, measured.gemm_rows(folder, KINDS[gpu].dtypes[dtype]))
    seen = gemm.check(target, gpu, dtype, Gemm(**fit.constants))
    return Fit(fit.constants, (*fit.errors, *seen))


def _attention(target: Gpu, gpu: str, folder: Path) -> Fit:
    fit = attention.fit(target, gpu)
    seen = attention.check(target, Attention(**fit.constants), *measured.attention_rows(folder))
    return Fit(fit.constants, (*fit.errors, seen))


def _collectives(folder: Path, nominal: float) -> dict[str, Fit]:
    """Fits by "collective protocol"; an all-reduce of 8 GPUs that NVSwitch adds up stands apart."""
    out = {}
    for name, called in collectives.FITTED.items():
        rows = measured.nccl_rows(folder, called)
        in_switch = name == "all_reduce" and folder.name.startswith("h100")
        parts = {name: (rows.gpus < 8) | (not in_switch)}
        if in_switch:
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


def report(calibrations: Sequence[Calibration]) -> str:
    """All errors and fits of collectives as two tables of Markdown."""
    out = [
        REPORT,
        "| GPU | family | rows | mean | bias | p90 | max |",
        "|---|---|---|---|---|---|---|",
    ]
    for c in calibrations:
        for e in c.errors:
            percent = " | ".join(f"{100 * value:.1f} %" for value in e[2:])
            out.append(f"| {c.gpu} | {e.family} | {e.rows} | {percent} |")
    out += ["", COLLECTIVES, "| GPU | collective | base | hop | share of the link, by group size |"]
    out.append("|---|---|---|---|---|")
    for c in calibrations:
        for name, fit in c.collectives.items():
            shares = ", ".join(f"{k[6:]}: {v:.3f}" for k, v in fit.items() if k[:6] == "share_")
            latency = f"{fit['base'] * 1e6:.1f} us | {fit['hop'] * 1e6:.2f} us"
            out.append(f"| {c.gpu} | {name} | {latency} | {shares} |")
    return "\n".join(out) + "\n"


def replace(text: str, fitted: str) -> str:
    """A topology file with these fitted tables; they go where its first fitted table stood.

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


def _written(key: str, value: float | str) -> str:
    """A constant to four digits, seconds with their unit, a source in quotes."""
    if isinstance(value, str):
        return f'"{value}"'
    return f'"{value * 1e6:.4g} us"' if key == "fixed" else f"{value:.4g}"
