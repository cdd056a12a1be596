"""What a device holds besides what a step keeps: worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.builder.backward_memory import global_buffer, input_gradients, placeholders
from sim.builder.mesh import Mesh
from sim.builder.shares import share
from sim.builder.stage import stage_programs
from sim.machine import topology
from sim.memory.runtime import outside
from sim.model.sizes import Model, model_of
from sim.runs.check import check
from tests.recipes import parsed
from tests.small import Keys, keys, small

LLAMA = model_of(
    {
        "name": "x", "layers": 2, "hidden": 64, "heads": 8, "kv_heads": 4, "head_dim": 8,
        "ffn": 160,
        "gated": True, "vocab": 512, "tied": False, "norm": "rms", "attention": "flash",
        "activation": "silu", "position": "rope", "dropout": 0.0, "qkv_bias": False, "bias": False,
        "vocab_padding": 1, "sequence": 32, "positions": 32,
    }
)  # fmt: skip
TOKENS = 3 * 32  # of three samples


def held(model: Model, setting: Keys, program: str, category: str) -> list[float]:
    """What each item of a stage's program allocates (or frees) of a category, where it does."""
    items = stage_programs(small(model, setting), [0, 1], first=True, last=True)[program]
    return [m.bytes for item in items for m in item.memory if m.category == category]


def test_input_gradients_at_their_worst():
    """Gated, whole: x and both halves. Split over 8: x / 8, what was gathered, and f."""
    x, f = 2 * TOKENS * 64, 2 * TOKENS * 160
    whole = share(small(LLAMA, keys(1, False, 3, 32)))
    assert input_gradients(LLAMA, whole, 0) == x + 2 * f
    split = share(small(replace(LLAMA, kv_heads=8), keys(8, True, 3, 32)))
    assert input_gradients(LLAMA, split, 0) == x / 8 + x + f / 8
    plain = replace(LLAMA, gated=False)
    assert input_gradients(plain, whole, 0) == x + f
    taken = held(LLAMA, keys(1, False, 3, 32), "B", "input_gradients")
    assert taken == [x + 2 * f, -x - 2 * f]  # of the last layer alone
    assert held(LLAMA, keys(1, False, 3, 32), "W", "input_gradients") == []


def test_one_placeholder_per_shape():
    """QKV 128 x 64, projection 64 x 64, both MLP matrices; the layers share them."""
    part = share(small(LLAMA, keys(1, False, 3, 32)))
    matrices = 128 * 64 + 64 * 64 + 320 * 64 + 64 * 160
    assert placeholders(LLAMA, part, [0, 1]) == 2 * matrices
    assert placeholders(LLAMA, part, []) == 0


def test_weight_gradients_pass_or_are_cached_or_kept():
    """In passing the largest of the layers and the ends', cached the ends', kept all until the
    end."""
    ends = [2 * 512 * 64] * 2
    layers = [2 * n for n in (128 * 64, 64 * 64, 320 * 64, 64 * 160)]
    wanted = {"passing": [max(layers), *ends], "cached": ends, "kept": [*layers, *layers, *ends]}
    for how, sizes in wanted.items():
        setting = keys(1, False, 3, 32, weight_gradients=how)
        for program in "BW":
            rows = held(LLAMA, setting, program, "weight_gradient")
            assert sorted(r for r in rows if r > 0) == sorted(sizes)
            assert sum(rows) == 0
    last = stage_programs(small(LLAMA, setting), [0, 1], first=True, last=True)["B"][-1].memory
    freed = [m.bytes for m in last if m.category == "weight_gradient" and m.at == "end"]
    assert sum(freed) == -sum(wanted["kept"])


def test_the_global_buffer_is_as_large_as_its_largest_user():
    x, square = 2 * TOKENS * 64, 2 * 3 * 8 * 32 * 32
    unfused = replace(LLAMA, attention="unfused")
    whole, split = keys(1, False, 3, 32), keys(2, True, 3, 32)
    sizes = [global_buffer(m, share(small(m, s))) for m in (LLAMA, unfused) for s in (whole, split)]
    assert sizes == [0, x, square, max(x, square / 2)]


def test_kernels_that_are_not_fused_keep_what_is_between():
    """The nonlinearity's output, keys and values again where there are as many heads of each, and
    in the forward fp32 logits twice, not 16-bit ones besides."""
    setting, eager = keys(1, False, 3, 32), replace(LLAMA, fused=False)
    f, logits = 2 * TOKENS * 160, TOKENS * 512
    kept = [sum(held(m, setting, "F", "activations")) for m in (LLAMA, eager)]
    assert kept[1] - kept[0] == 2 * f
    several = replace(LLAMA, kv_heads=8)
    kept = [
        sum(held(replace(several, fused=way), setting, "F", "activations")) for way in (True, False)
    ]
    assert kept[1] - kept[0] == 2 * (f + 2 * 2 * TOKENS * 64)
    more = [max(held(m, setting, "F", "logits")[1:]) for m in (LLAMA, eager)]
    assert more == [2 * logits, 4 * logits]
    for model in (LLAMA, eager):
        freed = held(model, setting, "B", "activations")
        assert sum(freed) + sum(held(model, setting, "F", "activations")) == 0


@pytest.mark.parametrize(
    ("degrees", "connections"),
    [({}, 0), ({"tp": 2}, 1 + 1), ({"tp": 8, "pp": 4, "dp": 2}, 2 + 2 + 1 + 2)],
)
def test_a_ring_has_two_neighbours_or_one(degrees, connections):
    """One communicator per dimension and that of all ranks."""
    runtime = {"context": 500.0, "workspace": 32.0, "channels": 16, "connection": 12.0}
    mesh = Mesh(**{"tp": 1, "pp": 1, "dp": 1, **degrees})
    assert outside(mesh, runtime) == 532 + connections * 16 * 12
    assert outside(mesh, None) == 0


@pytest.mark.slow
def test_a_job_fits_by_what_the_device_holds():
    """Peak and all besides it: an H100 of 79.65 GiB is full before its 80 GB are counted."""
    training = {"micro_batch": 4, "recompute": "full"}
    found = check(parsed({"preset": "gpt-22b"}, 4, tp=8, training=training))
    (entry,) = found["memory"]
    runtime = topology.read("dgx_h100")["costs"]["runtime"]
    besides = (543 + 32 + 2 * 2 * 16 * 12) * 2**20
    assert outside(Mesh(tp=8), runtime) == besides
    assert entry["device_bytes"] == entry["peak_bytes"] + besides
    assert found["fits"]
    assert found["capacity_bytes"] == 79.65 * 2**30
