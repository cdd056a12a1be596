"""Models whose layers are of several kinds: FLOPs, parameters and bytes against closed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.builder.activations import layer_bytes
from sim.builder.shares import share
from sim.graph import Compute
from sim.machine.cluster import load
from sim.machine.kernels import borrowed, compute_seconds
from sim.model import layers
from sim.model.layer import layer
from sim.model.operators import whole
from sim.model.sizes import (
    Model,
    Recurrence,
    attention_flops,
    layer_flops,
    model_flops,
    parameters,
    parts,
)
from sim.recipe.mixtures import unused
from tests.recipes import parsed
from tests.small import GPT, keys, small

S, W = 64, 24
LLAMA = replace(
    GPT, layers=6, gated=True, norm="rms", attention="flash", activation="silu", kv_heads=4,
    qkv_bias=False, bias=False, position="rope", dropout=0.0, window=W, sequence=S,
    experts=4, topk=2, expert_ffn=48, shared_experts=1,
    recurrence=Recurrence(heads=8, head_dim=12, groups=4, state=16, chunk=16),
)  # fmt: skip
KINDS = sorted(path.stem for path in Path(layers.__file__).parent.glob("[a-z]*.py"))
MIXERS = [kind for kind in KINDS if kind not in ("dense", "experts", "latent", "convolution")]
ALONE = keys(1, False, 2, S)


def of(mixer: str, then: str = "dense", **changes: object) -> Model:
    return replace(LLAMA, pattern=(mixer,), feed_forward=(then,), **changes)  # type: ignore[arg-type]


def done(model: Model, number: int = 0, kind: str = "", **setting: object) -> float:
    """FLOPs of a layer's forward on the ranks that share a microbatch; experts are balanced."""
    job = small(model, ALONE | {"sequence": model.sequence} | setting)
    tp, cp = (int(str(setting.get(key, 1))) for key in ("tp", "cp"))
    return sum(
        tp * launch.work.flops
        for rank in range(cp)
        for op in layer(job.model, share(job, cp_rank=rank), number)
        for launch in op.forward
        if launch.work.kind.startswith(kind)
    )


def met(kind: str, rows: int) -> np.ndarray:
    """How much of each pair of query and key counts, token by token; edges of a mask as halves."""
    far = np.arange(rows)[:, None] - np.arange(rows)
    if kind == "sliding":
        return ((far > 0) & (far < W)) + ((far == 0) | (far == W)) / 2
    chunk = np.arange(rows) // W
    same = (chunk[:, None] == chunk) if kind == "chunked" else True
    return (far > 0) * same + (far == 0) / 2


@pytest.mark.parametrize("kind", ["full", "sliding", "chunked"])
@pytest.mark.parametrize("rows", [1, W, S])
def test_attention_computes_the_pairs_that_its_mask_leaves(kind: str, rows: int) -> None:
    pairs = np.sum(met(kind, rows))
    model = of(kind, sequence=rows)
    assert done(model, kind="attention") == 2 * 4 * model.heads * model.head_dim * pairs
    assert attention_flops(model, 2, rows) == 2 * done(model, kind="attention")


@pytest.mark.parametrize("kind", ["sliding", "chunked"])
@pytest.mark.parametrize("how", ["ulysses", "allgather"])
@pytest.mark.parametrize("placement", ["contiguous", "zigzag"])
def test_ranks_that_share_a_sequence_do_the_work_of_one(
    kind: str, how: str, placement: str
) -> None:
    split = {"cp": 4, "cp_kind": how, "cp_placement": placement}
    assert done(of(kind), **split) == done(of(kind))


def test_a_gathered_block_reads_the_keys_of_its_window_alone() -> None:
    job = small(
        of("sliding"), ALONE | {"cp": 4, "cp_kind": "allgather", "cp_placement": "contiguous"}
    )
    ops = layer(job.model, share(job, cp_rank=3), 0)
    (one,) = [launch for op in ops for launch in op.forward if launch.name == "attention"]
    assert one.work.shape[2:4] == (16, 16 + W - 1)


def test_what_a_layer_keeps_does_not_depend_on_its_window() -> None:
    kept = {layer_bytes(small(of(kind), ALONE)) for kind in ("full", "sliding", "chunked")}
    assert len(kept) == 1


def test_a_kernel_of_attention_takes_the_time_of_its_pairs() -> None:
    """128 tokens of 8,192 are a pair in 33; the fixed cost per query block is not as much less."""
    gpu = load("dgx_h100", 8).gpu
    seconds = {}
    for window in (128, 1024, 8192):
        model = of("sliding", window=window, sequence=8192, heads=64, head_dim=64)
        part = share(small(model, ALONE | {"sequence": 8192}))
        (op,) = [op for op in layer(model, part, 0) if op.name == "attention"]
        seconds[window] = compute_seconds(gpu, op.forward[0].work)[0]
    exact = {w: (8192 * w - w * w / 2) / (8192**2 / 2) for w in (128, 1024)}
    assert exact[1024] < seconds[1024] / seconds[8192] < 1.5 * exact[1024]
    assert exact[128] < seconds[128] / seconds[8192] < 6 * exact[128]


class Counted:
    """Multiplies matrices and counts the FLOPs."""

    def __init__(self) -> None:
        self.flops = 0

    def __call__(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        self.flops += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b


def state_space(times: Counted, r: Recurrence, q: int, draw: np.random.Generator) -> None:
    """Mamba-2 of two chunks by products, and token by token."""
    k, p, n = r.state, r.head_dim, 2 * q
    keys, queries = draw.normal(size=(2, r.groups, n, k))
    values, decay = draw.normal(size=(r.heads, n, p)), draw.uniform(0.5, 1.0, (r.heads, n))
    scores = {
        (g, c): times(queries[g, c : c + q], keys[g, c : c + q].T)
        for g in range(r.groups)
        for c in (0, q)
    }
    for h in range(r.heads):
        g, state, out, slow = h * r.groups // r.heads, np.zeros((k, p)), [], np.zeros((k, p))
        for c in (0, q):
            at, gone = slice(c, c + q), np.cumprod(decay[h, c : c + q])
            within = np.tril(gone[:, None] / gone) * scores[g, c]
            out.append(times(within, values[h, at]) + gone[:, None] * times(queries[g, at], state))
            left = (gone[-1] / gone)[:, None] * values[h, at]
            state = gone[-1] * state + times(keys[g, at].T, left)
        for t in range(n):
            slow = decay[h, t] * slow + np.outer(keys[g, t], values[h, t])
            assert np.concatenate(out)[t] == pytest.approx(queries[g, t] @ slow)


def delta_rule(times: Counted, r: Recurrence, q: int, draw: np.random.Generator) -> None:
    """A gated delta net of two chunks by products in the WY form, and token by token."""
    k, p, n = r.state, r.head_dim, 2 * q
    for _ in range(r.heads):
        keys, queries = draw.normal(size=(2, n, k)) / np.sqrt(k)
        values, (decay, rate) = draw.normal(size=(n, p)), draw.uniform(0.5, 1.0, (2, n))
        state, out, slow = np.zeros((k, p)), [], np.zeros((k, p))
        for c in (0, q):
            at, gone = slice(c, c + q), np.cumprod(decay[c : c + q])
            among = np.tril(gone[:, None] / gone)
            met = rate[at, None] * times(keys[at], keys[at].T) * np.tril(among, -1)
            inverse = np.linalg.inv(np.eye(q) + met) * rate[at]
            w, u = times(inverse, gone[:, None] * keys[at]), times(inverse, values[at])
            new = u - times(w, state)
            inside = times(times(queries[at], keys[at].T) * among, new)
            out.append(gone[:, None] * times(queries[at], state) + inside)
            state = gone[-1] * state + times((keys[at] * (gone[-1] / gone)[:, None]).T, new)
        for t in range(n):
            slow = decay[t] * (slow - rate[t] * np.outer(keys[t], keys[t] @ slow))
            slow += rate[t] * np.outer(keys[t], values[t])
            assert np.concatenate(out)[t] == pytest.approx(queries[t] @ slow)


@pytest.mark.parametrize(("kind", "scan"), [("mamba2", state_space), ("gated_delta", delta_rule)])
def test_a_scan_does_the_products_that_give_the_recurrence(
    kind: str, scan: Callable[[Counted, Recurrence, int, np.random.Generator], None]
) -> None:
    """The products of a chunked scan in NumPy are counted; its result is that of the recurrence."""
    model, times = of(kind), Counted()
    assert model.recurrence
    scan(times, model.recurrence, 16, np.random.default_rng(0))
    assert attention_flops(model, 1, 32) == times.flops
    assert attention_flops(model, 2, S) == 4 * times.flops
    part = share(small(model, ALONE))
    (op,) = [op for op in layer(model, part, 0) if op.name == "scan"]
    back = [launch.work.flops for launch in op.backward if launch.name.endswith("_backward")]
    forward = sum(launch.work.flops for launch in op.forward)
    assert forward == attention_flops(model, 2, S) == sum(back) / 2
    assert attention_flops(model, 1, 10) > attention_flops(model, 1, 5)  # one short chunk


def kept(kind: str) -> float:
    """Bytes that a token keeps in a layer of mixing alone, beside the inputs of norm and linear."""
    model = of(kind, "none", dropout=0.0)
    return layer_bytes(small(model, ALONE)) / (2 * S) - 2 * 2 * model.hidden


def test_what_a_scan_keeps_is_what_its_kernels_save() -> None:
    """Mamba-2 keeps the linear's output and the scan's; the norm and the projection the rest."""
    values, channels, steps = 8 * 12, 8 * 12 + 2 * 4 * 16, 8
    assert kept("mamba2") == 2 * ((values + channels + steps) + values + values)


def test_what_a_gated_delta_net_keeps_is_what_its_functions_save() -> None:
    """Per token of 8 heads of 12 values, 4 of 16 keys, and chunks of 16.

    As in Qwen3-Next's modelling code: causal_conv1d_fn saves its input; flash-linear-attention's
    ChunkGatedDeltaRuleFunction q, k, v, a row of each head's inverse A, and g and beta in fp32;
    its gated norm the core's output and the gate z; the last linear its input.
    """
    q = k = 4 * 16
    v = z = core = projected = 8 * 12
    g = beta = 8
    assert kept("gated_delta") == 2 * (
        (q + k + v) + (q + k + v + 8 * 16) + (core + z) + projected
    ) + 4 * (g + beta)


def test_a_selective_scan_keeps_what_its_functions_save_and_multiplies_what_its_linears_do() -> (
    None
):
    """Per token of 96 channels with 16 states, steps of rank 64 / 16, and 4 groups of B and C.

    As in Jamba's modelling code: causal_conv1d_fn saves its input; so do x_proj, the norms, dt_proj
    and the last linear; mamba_ssm's SelectiveScanFn u (x_proj's input), delta, B, C, z, out, and
    every 16 tokens a pair of fp32 numbers per state.
    """
    d, n, h, rank = 8 * 12, 16, 64, 4
    before = u = delta = z = out = gated = d
    b = c = 4 * n
    norms = rank + b + c
    saved = before + u + norms + rank + (delta + b + c + z + out) + gated
    assert kept("mamba") == 2 * saved + 4 * 2 * d * n / 16
    model = of("mamba", "none")
    linears = h * 2 * d + d * (rank + b + c) + rank * d + d * h
    assert layer_flops(model, 2, S) == done(model) == 2 * 2 * S * linears
    ops = layer(model, share(small(model, ALONE)), 0)
    (scan,) = [launch.work for op in ops if op.name == "scan" for launch in op.forward]
    moved = 2 * (u + delta + z + b + c + out + gated) + 4 * 2 * d * n / 16
    assert scan.bytes == 2 * S * moved


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "gated_delta"])
def test_a_kernel_without_constants_of_its_own_is_priced_as_its_class(kind: str) -> None:
    gpu = load("dgx_h100", 8).gpu
    model = of(kind)
    ops = layer(model, share(small(model, ALONE)), 0)
    works = [launch.work for op in ops for launch in (*op.forward, *op.backward)]
    new = Compute("norm", 0.0, 1.0, by="mine")
    assert borrowed(gpu, [new, new._replace(by="flash2", kind="attention")]) == {"mine": "norm"}
    own = {"conv1d": "elementwise", "scan": "elementwise", "chunk_products": "grouped_gemm"}
    if kind == "mamba":
        own = {"conv1d": "elementwise", "selective_scan": "elementwise"}
    assert borrowed(gpu, works) == own
    for work in works:
        if work.by in own:
            assert compute_seconds(gpu, work) == compute_seconds(gpu, work._replace(by=""))
    kernels = {**gpu.costs["memory_kernels"], "conv1d": 0.5}
    priced = replace(gpu, costs={**gpu.costs, "memory_kernels": kernels})
    (one, *_) = [work for work in works if work.by == "conv1d"]
    assert compute_seconds(priced, one)[1] == one.bytes / (gpu.memory_bandwidth * 0.5)
    assert borrowed(priced, works).keys() == own.keys() - {"conv1d"}


patterns = st.lists(st.sampled_from(MIXERS), min_size=1, max_size=4)
follow = st.lists(st.sampled_from(["dense", "experts"]), min_size=1, max_size=3)
splits = st.sampled_from(
    [{}, {"tp": 2, "sp": True}, {"tp": 4, "sp": True, "ep": 2}, {"ep": 4}, {"ep": 2, "etp": 2}]
)


@settings(max_examples=12, deadline=None)
@given(pattern=patterns, then=follow, split=splits)
def test_a_drawn_pattern_conserves_work_and_parameters(pattern, then, split) -> None:
    model = replace(LLAMA, pattern=tuple(pattern), feed_forward=tuple(then))
    kinds = list(islice(zip(cycle(pattern), cycle(then), strict=False), model.layers))
    assert [model.kind(i) for i in range(model.layers)] == kinds
    ep, tp, etp = (int(split.get(key, 1)) for key in ("ep", "tp", "etp"))
    for i in range(model.layers):
        assert done(model, i, **split) == pytest.approx(done(model, i), rel=1e-12)
        for how in parts(model, i)[0].shares:
            assert done(model, i, cp=2, cp_kind=how, ulysses=1 + (how == "usp")) == pytest.approx(
                done(model, i), rel=1e-12
            )
        if model.kind(i)[-1] == "dense":  # a degree of 1 changes nothing
            plain = layer(model, whole(model, 2, "bf16", "fp32"), i)
            assert layer(model, share(small(model, ALONE)), i) == plain
        one, part = (parameters(model, *n, False, False) for n in ((1, [i]), (tp, [i])))
        some = parameters(model, tp, [i], False, False, ep, etp)
        assert (part.linear * tp, some.expert * ep * etp) == (one.linear, one.expert)
        assert (part.norm, part.replicated) == (one.norm, one.replicated)
    each = [layer_flops(model, 2, S, i) for i in range(model.layers)]
    head = 2 * 2 * S * model.hidden * 512
    assert model_flops(model, 2, S) == pytest.approx(3 * (sum(each) + head), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_kernels_of_a_kind_do_the_work_that_it_says(kind: str) -> None:
    """Products of matrices by the elements that a token meets; the mask's half is not computed."""
    if kind in ("latent", "convolution"):
        pytest.skip("has tests of its own")
    model = of("full", kind) if kind in ("dense", "experts") else of(kind)
    products = sum(part.used() for part in parts(model, 0))
    masked = attention_flops(model, 2, S) / 2 * (done(model, kind="attention") > 0)
    assert done(model) == layer_flops(model, 2, S) - masked
    assert done(model) - done(model, kind="attention") >= 2 * 2 * S * products


SCAN = {"heads": 8, "head_dim": 16, "groups": 4, "state": 16}
REFUSED = [
    ({"pattern": ["slidng"]}, "model.pattern has no kind 'slidng'; there are "),
    ({"pattern": ["dense"]}, "model.pattern has no kind 'dense'"),
    ({"feed_forward": ["full"]}, "model.feed_forward has no kind 'full'; there are dense, experts"),
    ({"pattern": ["sliding"]}, "model.window is missing; sliding layers need it"),
    ({"window": 8}, "model.window is given, but no layer uses it; leave it out"),
    ({"pattern": ["none"], "sinks": True}, "model.sinks is given, but no layer uses it"),
    ({"pattern": ["mamba2"], "recurrence": SCAN | {"groups": 3}}, "groups = 3, each of which"),
    ({"experts": 4, "topk": 2, "feed_forward": ["dense"]}, 'model.feed_forward has no "experts"'),
    ({"pattern": ["mamba2"]}, "model.recurrence is missing; mamba2 layers need it"),
    ({"feed_forward": ["experts"]}, 'model.feed_forward with "experts" needs model.experts'),
    ({"pattern": ["none"], "feed_forward": ["none"]}, "layer 0 is none of model.pattern and none"),
    ({"pattern": ["sliding"], "window": 8, "cp": 2},
     "sliding layers; allgather or ulysses would do"),
    ({"qk_norm": "whole", "tp": 2}, 'model.qk_norm = "whole" with parallelism.tp = 2'),
    ({"norm_place": "after", "modules": ["mlp"]}, 'with model.norm_place = "after"; core_attn'),
    ({"pattern": ["full"], "modules": ["norm"]}, "with model.pattern or model.feed_forward"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), REFUSED)
def test_a_refusal_is_one_sentence(change: dict, sentence: str) -> None:
    split = {key: change[key] for key in ("tp", "cp") if key in change}
    table = {"recompute": {"modules": change["modules"]}} if "modules" in change else {}
    sizes = {"layers": 4, "hidden": 64, "heads": 8, "vocab": 128, "sequence": 64, "norm": "rms"}
    own = {key: value for key, value in change.items() if key not in (*split, "modules")}
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        parsed(sizes | own, 2, gpus=2, topology="dgx_a100", training=table, **split)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("preset", "more"),
    [("gemma3-4b", {"pattern": ["full"]}), ("qwen3-8b", {"pattern": ["none"]}),
     ("gpt-oss-20b", {"pattern": ["mamba2"], "recurrence": SCAN})],
)  # fmt: skip
def test_other_layers_than_those_of_a_preset_leave_its_keys_out(preset: str, more: dict) -> None:
    """What no layer reads any more could not be taken back by a recipe."""
    model = parsed({"preset": preset, "layers": 2, "sequence": 64, **more}, 1).model
    assert unused(model.model_dump()) == []
    assert unused({**model.model_dump(), "window": 8}) == ["window"]
