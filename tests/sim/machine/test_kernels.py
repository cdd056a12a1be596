"""Kernel costs: a case worked by hand per family, rooflines, and what growing a shape may do."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.builder.shares import share
from sim.builder.strategies.embedding import embedding, head
from sim.graph import Compute
from sim.machine import cluster, kernels
from sim.model.layer import layer
from sim.model.sizes import model_of
from sim.recipe import presets
from tests.small import keys, small

TOY_GEMM = {
    "tile_256x128": 0.5, "tile_128x128": 0.25, "tile_128x64": 0.125, "tile_64x64": 0.0625,
    "ramp": 20.0, "quantisation": 0.75, "split": 1.5, "derating": 0.2, "derating_seconds": 1e3,
    "accumulate": 0.5, "memory": 0.8, "fixed": 7.0,
}  # fmt: skip
TOY_ATTENTION = {
    "forward": 0.5, "backward": 0.4, "keys": 100.0, "head_dim": 16.0, "quantisation": 0.5,
    "memory": 0.8, "fixed": 5.0,
}  # fmt: skip
TOY_MEMORY = {"fixed": 2.0, **dict.fromkeys(kernels.MEMORY_KINDS, 0.5)}
COSTS = {"gemm": {"bf16": TOY_GEMM}, "attention": TOY_ATTENTION, "memory_kernels": TOY_MEMORY}
TOY = SimpleNamespace(sms=4, memory_bandwidth=1000.0, peak={"bf16": 1e6, "fp32": 1e5}, costs=COSTS)
REAL = {name: cluster.load(name, 8).gpu for name in ("dgx_a100", "dgx_h100")}


def seconds(gpu, work):
    arithmetic, memory, fixed = kernels.compute_seconds(gpu, work)
    return max(arithmetic, memory) + fixed


def gemm(batch, m, n, k, dtype="bf16"):
    moved = 2.0 * batch * (m * k + k * n + m * n)
    return Compute("gemm", 2.0 * batch * m * n * k, moved, (batch, m, n, k), dtype)


def attention(batch, heads, s, dim, *, causal=True, backward=False):
    flops = (10.0 if backward else 4.0) * batch * heads * s * s * dim * (0.5 if causal else 1.0)
    kind = "attention_backward" if backward else "attention"
    return Compute(kind, flops, 8.0 * batch * heads * s * dim, (batch, heads, s, s, dim))


def test_a_gemm_worked_by_hand():
    """m = 600, n = 250, k = 60 on 4 SMs: the large tile wins, with one and a half waves.

    Tiles of 256 × 128: ceil(600/256) · ceil(250/128) = 3 · 2 = 6, so 1.5 waves are full and 2 are
    begun: 0.25 · 1.5 + 0.75 · 2 = 1.875 to pay. A wave is 4 tiles of 2 · 256 · 128 · (60 + 20)
    FLOPs at half of 1e6 FLOP/s: 4 · 5,242,880 / 5e5 = 41.94304 s; 1.875 of them 78.6432 s. A tile
    of 128 × 256 gives 5 · 1 = 5: 1.25 full, 0.3125 + 1.5 = 1.8125 to pay: 76.02176 s, which is
    less. Smaller tiles are half as big and half as efficient, so as slow a wave, and more of them.
    Two halves of k cost 1.5 · (30 + 20) = 75 of 80 columns but 10 tiles: 2.5 full, 2.875 to pay.
    This is at boost clock: power is not the kernel's matter (:mod:`sim.machine.power`).
    """
    work = gemm(1, 600, 250, 60)
    arithmetic, memory, fixed = kernels.compute_seconds(TOY, work)
    assert arithmetic == pytest.approx(76.02176, rel=1e-12)
    assert memory == pytest.approx(work.bytes / 800.0, rel=1e-12)
    assert fixed == 7.0


def test_few_tiles_split_a_long_k():
    """One tile with k = 980 on 4 SMs: 1000 columns alone; in 4 parts 1.5 · (245 + 20) = 397.5."""
    arithmetic, _, _ = kernels.compute_seconds(TOY, gemm(1, 256, 128, 980))
    wave = 4 * 2 * 256 * 128 * 397.5 / 5e5
    assert arithmetic == pytest.approx(wave, rel=1e-12)


@pytest.mark.parametrize(("backward", "share", "flops"), [(False, 0.5, 4.0), (True, 0.4, 10.0)])
def test_attention_worked_by_hand(backward, share, flops):
    """2 · 3 heads, 300 tokens, causal, d = 64 on 4 SMs.

    A query meets 150 keys: 1 + 100/150; head dimension 1 + 16/64. Blocks of 128 queries: 6 · 3 =
    18, so 4.5 waves full and 5 begun: 4.75 / 4.5 at half quantisation.
    """
    work = attention(2, 3, 300, 64, backward=backward)
    ideal = flops * 6 * 300 * 150 * 64 / (1e6 * share)
    arithmetic, _, fixed = kernels.compute_seconds(TOY, work)
    assert arithmetic == pytest.approx(ideal * (1 + 100 / 150) * 1.25 * 4.75 / 4.5, rel=1e-12)
    assert fixed == 5.0


@pytest.mark.parametrize("kind", kernels.MEMORY_KINDS)
def test_memory_kernels_take_their_share_of_the_bandwidth(kind):
    """6,000 bytes at half of 1,000 B/s; 3e5 FLOPs on the vector units, at 1e5 FLOP/s."""
    assert kernels.compute_seconds(TOY, Compute(kind, 3e5, 6000.0)) == (3.0, 12.0, 2.0)


def test_a_kernel_with_a_share_of_its_own_takes_that(monkeypatch):
    """6,000 bytes at a quarter of 1,000 B/s; where the table lacks it, at its kind's half."""
    work = Compute("elementwise", 0.0, 6000.0, by="gather")
    assert kernels.compute_seconds(TOY, work) == (0.0, 12.0, 2.0)
    monkeypatch.setitem(TOY_MEMORY, "gather", 0.25)
    assert kernels.compute_seconds(TOY, work) == (0.0, 24.0, 2.0)


def test_tiles_of_all_experts_fill_waves_together():
    """Five tiles of 80 columns with their ramp and one of 40 on 4 SMs: six tiles as worked above,
    1.875 waves to pay, each of 4 tiles of 440 / 6 columns; one after the other would be more waves.
    """
    products = [(5, 256, 128, 60), (1, 256, 128, 20)]
    shape = tuple(size for p in products for size in p)
    flops = 2 * 256 * 128 * 320.0
    arithmetic, _, _ = kernels.compute_seconds(TOY, Compute("grouped_gemm", flops, 1.0, shape))
    wave = 4 * 2 * 256 * 128 * (440 / 6) / 5e5
    assert arithmetic == pytest.approx(1.875 * wave, rel=1e-12)


def flops_of(products):
    return sum(2.0 * batch * m * n * k for batch, m, n, k in products)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=12), st.sampled_from(sorted(REAL)))
@settings(max_examples=40, deadline=None)
def test_a_grouped_gemm_lies_between_even_and_one_by_one(tokens, name):
    """Never faster than the peak; equal products cost what a batch of them costs."""
    gpu = REAL[name]
    products = [(1, m, 1024, 2048) for m in tokens]
    shape = tuple(size for p in products for size in p)
    work = Compute("grouped_gemm", flops_of(products), 1.0, shape)
    arithmetic, _, fixed = kernels.compute_seconds(gpu, work)
    assert arithmetic >= work.flops / gpu.peak["bf16"]
    equal = Compute("grouped_gemm", flops_of([(4, tokens[0], 1024, 2048)]), 1e9,
                    (1, tokens[0], 1024, 2048) * 4)  # fmt: skip
    batch = equal._replace(kind="gemm", shape=(4, tokens[0], 1024, 2048))
    assert kernels.compute_seconds(gpu, equal) == pytest.approx(
        kernels.compute_seconds(gpu, batch), rel=1e-12
    )
    assert fixed == kernels.compute_seconds(gpu, batch)[2]  # paid once


SIZE = st.integers(1, 20_000)
GPU = st.sampled_from(sorted(REAL))


@given(GPU, st.integers(1, 64), SIZE, SIZE, SIZE)
@settings(deadline=None)
def test_no_gemm_is_faster_than_the_roofline(name, batch, m, n, k):
    gpu, work = REAL[name], gemm(batch, m, n, k)
    arithmetic, memory, fixed = kernels.compute_seconds(gpu, work)
    assert arithmetic >= work.flops / gpu.peak["bf16"]
    assert memory >= work.bytes / gpu.memory_bandwidth
    assert fixed > 0


@given(GPU, st.integers(1, 8), SIZE, SIZE, SIZE, st.integers(0, 3), st.integers(1, 3000))
@settings(deadline=None)
def test_a_larger_gemm_never_takes_less(name, batch, m, n, k, axis, more):
    shape = [batch, m, n, k]
    larger = [size + more * (i == axis) for i, size in enumerate(shape)]
    slack = 1 + 1e-12  # products are rounded
    assert seconds(REAL[name], gemm(*larger)) * slack >= seconds(REAL[name], gemm(*shape))


@given(
    GPU, st.integers(1, 16), st.integers(1, 64), SIZE, st.integers(8, 256), st.booleans(),
    st.booleans(),
)  # fmt: skip
@settings(deadline=None)
def test_attention_stays_below_the_peak_and_backward_takes_longer(
    name, batch, heads, s, dim, causal, more
):
    gpu = REAL[name]
    forward = attention(batch, heads, s, dim, causal=causal)
    backward = attention(batch, heads, s, dim, causal=causal, backward=True)
    arithmetic, memory, _ = kernels.compute_seconds(gpu, forward)
    assert arithmetic >= forward.flops / gpu.peak["bf16"]
    assert memory >= forward.bytes / gpu.memory_bandwidth
    assert seconds(gpu, backward) > seconds(gpu, forward)
    wider = attention(batch + more, heads + (not more), s, dim, causal=causal)
    assert seconds(gpu, wider) * (1 + 1e-12) >= seconds(gpu, forward)


def works(preset):
    """All works of a rank that holds the preset whole, with either kind of attention."""
    numbers = presets.complete(presets.preset(preset))
    model = model_of(numbers)
    setting = keys(tp=1, sp=False, micro_batch=1, sequence=numbers["sequence"])
    for variant in (replace(model, attention="flash"), replace(model, attention="unfused")):
        part = share(small(variant, setting))
        ends = (*embedding(variant, part), *head(variant, part))
        kinds = [op for number, _ in model.kinds for op in layer(variant, part, number)]
        for op in (*ends, *kinds):
            yield from (launch.work for launch in (*op.forward, *op.backward, *op.weight))


@pytest.mark.parametrize("name", sorted(REAL))
@pytest.mark.parametrize("preset", sorted({*presets.names()} - {"resnet-50"}))
def test_every_kernel_of_a_preset_has_a_price(name, preset):
    priced = set(works(preset))
    grouped = {"grouped_gemm"}
    assert {work.kind for work in priced} - grouped == {*kernels.KINDS} - grouped - {"optimizer"}
    for work in priced:
        arithmetic, memory, fixed = kernels.compute_seconds(REAL[name], work)
        assert arithmetic >= 0
        assert memory > 0
        assert fixed > 0


def test_refusals_are_sentences():
    with pytest.raises(ValueError, match="no cost for kernels of kind 'conv'; there are gemm,"):
        kernels.compute_seconds(TOY, Compute("conv", 1.0, 1.0))
    with pytest.raises(ValueError, match="no peak for dtype 'int4'; it has bf16, fp32"):
        kernels.compute_seconds(TOY, gemm(1, 8, 8, 8, "int4"))
    with pytest.raises(kernels.SizeError, match=r"shape \(8, 8, 8\); it takes \(batch, m, n, k\)"):
        kernels.compute_seconds(TOY, Compute("gemm", 1.0, 1.0, (8, 8, 8)))
    with pytest.raises(
        ValueError, match=r"shape \(1, 8, 8\); it takes .* of each batch of products"
    ):
        kernels.compute_seconds(TOY, Compute("grouped_gemm", 1.0, 1.0, (1, 8, 8)))
    with pytest.raises(ValueError, match=r'no table \[gpu\.gemm\]; base = "dgx_a100"'):
        kernels.compute_seconds(SimpleNamespace(**{**vars(TOY), "costs": {}}), gemm(1, 8, 8, 8))
    lacking = {**COSTS, "gemm": {"bf16": {"fixed": 1.0}}}
    with pytest.raises(ValueError, match=r"table \[gpu\.gemm\] lacks tile_256x128,"):
        kernels.compute_seconds(
            SimpleNamespace(**{**vars(TOY), "costs": lacking}), gemm(1, 8, 8, 8)
        )


def test_fp16_costs_what_bf16_does():
    """Tables are of bf16; both run on the same tensor cores."""
    gpu = REAL["dgx_a100"]
    assert seconds(gpu, gemm(1, 4096, 4096, 4096, "fp16")) == seconds(gpu, gemm(1, *[4096] * 3))


def test_a_result_that_is_added_to_costs_its_extra_traffic():
    """10 more bytes for each of 600 · 250 elements, half of them unhidden, at 1,000 B/s: 750 s."""
    work = gemm(1, 600, 250, 60)
    added = work._replace(bytes=work.bytes + 10 * 600 * 250)
    plain, extra = (kernels.compute_seconds(TOY, w)[0] for w in (work, added))
    assert extra - plain == pytest.approx(750.0, rel=1e-12)


def test_fp8_operands_are_half_as_wide_and_its_result_is_not():
    """4,096 tokens of one H100: 2 bytes of result per element are no addition to it; fp32 is."""
    gpu = REAL["dgx_h100"]
    flops, operands, result = 2.0 * 4096**3, 2.0 * 4096**2, 4096.0**2
    plain = Compute("gemm", flops, operands + 2 * result, (1, 4096, 4096, 4096), "fp8")
    added = plain._replace(bytes=operands + 6 * result)
    c = gpu.costs["gemm"]["fp8"]
    fast, memory, fixed = kernels.compute_seconds(gpu, plain)
    assert flops / fast < gpu.peak["fp8"]
    assert fast < kernels.compute_seconds(gpu, gemm(1, 4096, 4096, 4096))[0] / 1.5
    assert (memory, fixed) == (plain.bytes / (gpu.memory_bandwidth * c["memory"]), c["fixed"])
    more = c["accumulate"] * 4 * result / gpu.memory_bandwidth
    assert kernels.compute_seconds(gpu, added)[0] - fast == pytest.approx(more)
