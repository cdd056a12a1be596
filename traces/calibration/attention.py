"""What fraction of the peak does fused attention reach? It fits the constants of each kernel.

H100: forward and backward apart, from the figures of FlashAttention-2 and -3, by head dimension.
A100: its figures have forward and backward together; how they divide is taken from the paper's
words (arXiv 2307.08691): FlashAttention-2 reaches up to 73 % of the peak forward and 63 % backward,
the first FlashAttention 30 to 50 % and 25 to 35 %, which Triton's kernel of 2023 resembles. H200:
as H100. B200: cuDNN's kernel, in SimuMax's rows, every second of which is fitted, beside a factor
that its machine is slower than one whose clock has not fallen; there FlashAttention-4 shows what
cuDNN's kernel is taken to reach too. Head dimension 64 goes by its ratio to 128 elsewhere. cuDNN's
kernel on A100 has no public figure and is taken to be FlashAttention-2's. What is taken so stands,
with its range, in ``sim/machine/assumed.toml``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from sim.graph import Floats
from sim.machine.assumed import assumed
from sim.machine.attention_tables import AttentionConstants, Shares
from sim.machine.cluster import Gpu
from sim.machine.kernels import QUERY_TILE, attention_seconds
from traces.calibration import attention_figures as figures
from traces.calibration.attention_figures import (
    BOOST,
    HIDDEN,
    LENGTHS,
    TOKENS,
    Speed,
    ThroughputCurve,
)
from traces.calibration.errors import Fit, FitError, fit_error, solve

KERNELS = {
    "triton": (figures.OLD, figures.TRITON),
    "flash2": (figures.SECOND,),
    "flash3": (figures.THIRD,),
    "cudnn": ("cuDNN",),
}
"""By table of the topology: the kernels that are fitted together."""
ASSUMED = assumed("attention")
BACKWARD = {"flash2": ASSUMED["flash2_a100_backward"], "triton": ASSUMED["triton_backward"]}
"""The backward's share over the forward's, where only both together were measured."""
CHOSEN = {
    "a100": {"flash": "flash2", "sdpa": "flash2"},
    "h100": {"flash": "cudnn", "sdpa": "flash2"},
    "b200": {"flash": "cudnn", "sdpa": "cudnn"},
}
"""Which kernel is taken by Transformer Engine (FlashAttention below compute capability 9.0, cuDNN's
from there), and by PyTorch up to 2.10 and torchtitan (FlashAttention-2; on B200 cuDNN's)."""
SOURCES = {
    ("a100", "triton"): f"FlashAttention and Triton in {figures.A100}; backward over forward: "
    "middles of 25 to 35 % and 30 to 50 % of the peak, arXiv 2307.08691",
    ("a100", "flash2"): f"{figures.A100}; backward over forward: 63 and 73 %, arXiv 2307.08691",
    ("a100", "cudnn"): "as FlashAttention-2's: no public figure of cuDNN's kernel was found",
    ("h100", "triton"): f"FlashAttention in {figures.H100_BOTH}; backward over forward: as A100's",
    ("h100", "flash2"): f"{figures.H100_BOTH}; {figures.H100}",
    ("h100", "flash3"): figures.H100,
    ("h100", "cudnn"): figures.H100,
    ("b200", "cudnn"): f"{figures.SIMUMAX}, over the factor by which that machine is slower than "
    "FlashAttention-4 in Dao-AILab/flash-attention pull 2280; head dimension 64: pull 2605, and "
    "backward as H100's",
}
"""Where the constants of each kernel on each kind of GPU come from."""
SMALL = (0.66, ASSUMED["cudnn_b200_backward_64"])
"""B200, head dimension 64 over 128. Forward: FlashAttention-4 in Dao-AILab/flash-attention pull
2605, 879 of 1,330 TFLOP/s at 16,384 tokens, as exponentials set its pace; backward: cuDNN, H100."""
MEMORY, FIXED = 0.8, 5e-6  # memory never limits these rows; fixed: two launches and the tail
CHECK = "check, attention: inference prefill of aiconfigurator-core, fastest framework"
FULL_WAVES = 4  # a prefill row with so many waves of blocks shows what a full GPU reaches


class Points(NamedTuple):
    """Measured kernels in columns, each of shape (rows,)."""

    kernel: list[str]
    forward: Floats  # 1: the row includes a forward
    backward: Floats
    heads: Floats  # batch · heads
    s: Floats
    keys: Floats  # that a query meets: s, or half of them
    dim: Floats
    seconds: Floats


def fit(gpu: Gpu, kind: str) -> dict[str, Fit]:
    """Return constants of each kernel on this kind of GPU (a100, h100, b200), and their errors."""
    if kind == "b200":
        return {"cudnn": _b200(gpu)}
    out = {}
    for table, kernels in KERNELS.items():
        curves = [c for c in figures.curves() if c.gpu == kind and c.kernel in kernels]
        if curves:
            rows = points(curves)
            apart = {curve.phase for curve in curves} != {"both"}
            c = _solve(gpu, rows, None if apart else BACKWARD[table])
            taken = _scaled(c, ASSUMED.get(f"{table}_{kind}", 1.0))
            out[table] = Fit(to_table(taken), _errors(gpu, c, rows))
            if (kind, table) == ("a100", "flash2"):  # no figure of cuDNN's kernel was found
                out["cudnn"] = Fit(to_table(_scaled(c, ASSUMED["cudnn_a100"])), ())
    return out


def _scaled(
    c: AttentionConstants, forward: float, backward: float | None = None
) -> AttentionConstants:
    """Return constants of a kernel that is faster by a factor, up to the peak."""
    factors = forward, forward if backward is None else backward
    parts = [
        tuple((dim, min(share * factor, 1.0)) for dim, share in shares)
        for shares, factor in zip((c.forward, c.backward), factors, strict=True)
    ]
    return c._replace(forward=parts[0], backward=parts[1])


def points(curves: Sequence[ThroughputCurve]) -> Points:
    """Return the readable points of published curves."""
    rows = [
        (c, s, speed) for c in curves for s, speed in zip(LENGTHS, c.tflops, strict=True) if speed
    ]
    s, dim, speed = np.array([(s, c.dim, speed) for c, s, speed in rows], np.float64).T
    forward = np.array([float(c.phase != "backward") for c, _, _ in rows])
    backward = np.array([float(c.phase != "forward") for c, _, _ in rows])
    keys = s * np.array([0.5 if c.causal else 1.0 for c, _, _ in rows])
    flops = 4.0 * TOKENS * keys * HIDDEN * (forward + 2.5 * backward)
    heads = TOKENS / s * (HIDDEN / dim)
    kernel = [c.kernel for c, _, _ in rows]
    return Points(kernel, forward, backward, heads, s, keys, dim, flops / (speed * 1e12))


def single(rows: Sequence[Speed], backward: bool, kernel: str) -> Points:
    """Return kernels of one phase."""
    heads, s, dim, speed, causal = np.array(rows, np.float64).T
    back = np.full_like(s, float(backward))
    keys = s * (1.0 - causal / 2)
    seconds = (10.0 if backward else 4.0) * heads * s * keys * dim / (speed * 1e12)
    return Points([kernel] * len(s), 1.0 - back, back, heads, s, keys, dim, seconds)


def joined(*parts: Points) -> Points:
    """Return the rows of all parts."""
    _, *columns = zip(*parts, strict=True)
    kernel = list(chain.from_iterable(part.kernel for part in parts))
    return Points(kernel, *(np.concatenate(column) for column in columns))


def predict(gpu: Gpu, c: AttentionConstants, rows: Points) -> Floats:
    """Return the seconds of every row: of its forward, its backward, or both."""
    out = np.zeros_like(rows.s)
    for backward, there in ((False, rows.forward), (True, rows.backward)):
        flops = (10.0 if backward else 4.0) * rows.heads * rows.s * rows.keys * rows.dim
        alone = attention_seconds(
            c, backward, gpu.peak["bf16"], gpu.sms, flops, rows.heads, rows.s, rows.s, rows.keys,
            rows.dim,
        )  # fmt: skip
        out += there * (alone + c.fixed)
    return out


def _solve(gpu: Gpu, rows: Points, ratio: float | None) -> AttentionConstants:
    """Return the constants that fit best; ``ratio`` is the backward's share over the forward's."""
    constants, start, high = _unknowns(rows, ratio)
    return constants(
        solve(lambda x: np.log(predict(gpu, constants(x), rows) / rows.seconds), start, 0.0, high)
    )


def _unknowns(
    rows: Points, ratio: float | None
) -> tuple[Callable[[Floats], AttentionConstants], list[float], list[float]]:
    """Return how the numbers that are fitted become constants, where they start, and their bounds.

    After the shares, forward and backward, come keys, masked and, if not tied, backward_keys.
    """
    dims = np.unique(rows.dim[rows.forward > 0])
    backward_dims = dims if ratio else np.unique(rows.dim[rows.backward > 0])

    shares = len(dims) + (0 if ratio else len(backward_dims))

    def constants(x: Floats) -> AttentionConstants:
        forward, backward, (keys, masked, *own) = np.split(x, [len(dims), shares])
        return AttentionConstants(
            _pairs(dims, forward),
            _pairs(backward_dims, forward * ratio if ratio else backward),
            float(keys),
            float(own[0] if own else keys),
            float(masked),
            0.0, 0.0, MEMORY, FIXED,
        )  # fmt: skip

    lengths = [100.0, 100.0] if ratio else [100.0, 100.0, 200.0]
    start = [*[0.5] * shares, *lengths]
    return constants, start, [*[1.0] * shares, *[2000.0] * len(lengths)]


def _pairs(dims: Floats, shares: Floats) -> Shares:
    return tuple(zip(map(float, dims), map(float, shares), strict=True))


def _b200(gpu: Gpu) -> Fit:
    """Fit every second row of SimuMax's; the errors of the others are a check."""

    def some(kernel: str, first: int = 0, each: int = 1) -> Points:
        phases = ("forward", False), ("backward", True)
        speeds = [(figures.speeds("b200", kernel, phase), back) for phase, back in phases]
        return joined(*(single(rows[first::each], back, kernel) for rows, back in speeds))

    fitted, held, boost = some("cuDNN", 0, 2), some("cuDNN", 1, 2), some(BOOST)
    c, slower = _solve_slower(gpu, joined(fitted, boost))
    fitted, held = (p._replace(seconds=p.seconds / slower) for p in (fitted, held))
    checked = [
        e._replace(family=f"check, {e.family}, rows held out") for e in _errors(gpu, c, held)
    ]
    errors = [*_errors(gpu, c, joined(fitted, boost)), *checked]
    forward, backward = (
        ((64.0, small * dict(shares)[128.0]), *shares)
        for small, shares in zip(SMALL, (c.forward, c.backward), strict=True)
    )
    c = _scaled(c._replace(forward=forward, backward=backward), ASSUMED["cudnn_b200"])
    return Fit(to_table(c), tuple(errors))


def _solve_slower(gpu: Gpu, rows: Points) -> tuple[AttentionConstants, float]:
    """Return constants at full clock, and the factor by which the other rows' machine is slower."""
    constants, start, high = _unknowns(rows, None)
    other = np.array([kernel != BOOST for kernel in rows.kernel])

    def off(x: Floats) -> Floats:
        times = predict(gpu, constants(x[:-1]), rows) * np.where(other, x[-1], 1.0)
        return np.log(times / rows.seconds)

    x = solve(off, [*start, 1.2], 0.0, [*high, 3.0])
    return constants(x[:-1]), float(x[-1])


def _errors(gpu: Gpu, c: AttentionConstants, rows: Points) -> tuple[FitError, ...]:
    """Return the errors by kernel and phase."""
    times = predict(gpu, c, rows)
    names = np.array([
        f"attention {kernel}, {PHASES[bool(forward), bool(backward)]}"
        for kernel, forward, backward in zip(rows.kernel, rows.forward, rows.backward, strict=True)
    ])  # fmt: skip
    return tuple(
        fit_error(name, times[names == name], rows.seconds[names == name])
        for name in dict.fromkeys(names.tolist())
    )


PHASES = {(True, False): "forward", (False, True): "backward", (True, True): "both"}


def to_table(c: AttentionConstants) -> dict[str, Any]:
    """Return constants as they stand in a topology file, shares by head dimension."""
    shares = {
        key: {f"{dim:g}": share for dim, share in getattr(c, key)}
        for key in ("forward", "backward")
    }
    return {k: v for k, v in {**c._asdict(), **shares}.items() if v or k != "head_dim"}


def fit_prefill(
    gpu: Gpu, like: AttentionConstants, heads: Floats, s: Floats, seconds: Floats
) -> Fit:
    """Fit forward shares and keys to causal prefill rows that fill the GPU; the rest is ``like``.

    The rows' head dimension is 128; the shares of others change in proportion.
    """
    full = heads * np.ceil(s / QUERY_TILE) >= FULL_WAVES * gpu.sms
    heads, s, seconds = heads[full], s[full], seconds[full]

    def constants(x: Floats) -> AttentionConstants:
        factor, keys = map(float, x)
        return _scaled(like, factor, 1.0)._replace(keys=keys)

    x = solve(
        lambda x: np.log(_prefill(gpu, constants(x), heads, s) / seconds),
        [1.0, 150.0],
        0.0,
        [20.0, 2000.0],
    )
    times = _prefill(gpu, constants(x), heads, s)
    error = fit_error("attention, prefill rows that fill the GPU", times, seconds)
    return Fit(to_table(constants(x)), (error,))


def check(gpu: Gpu, c: AttentionConstants, heads: Floats, s: Floats, seconds: Floats) -> FitError:
    """Compare the forward fit with causal prefill kernels of inference, which also fill a cache."""
    return fit_error(CHECK, _prefill(gpu, c, heads, s), seconds)


def _prefill(gpu: Gpu, c: AttentionConstants, heads: Floats, s: Floats) -> Floats:
    """Return the seconds of a causal forward with head dimension 128."""
    flops, dim = 2.0 * heads * s * s * 128, np.full_like(s, 128.0)
    peak = gpu.peak["bf16"]
    alone = attention_seconds(c, False, peak, gpu.sms, flops, heads, s, s, s / 2, dim)
    return np.asarray(alone) + c.fixed
