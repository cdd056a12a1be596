"""Kernels that are not fused: their bytes against torch's dispatcher and measured times."""

from dataclasses import replace
from math import fsum

import pytest

from sim.builder.shares import share
from sim.builder.stage import stage_programs
from sim.builder.strategies import update
from sim.builder.strategies.embedding import LOGIT, embedding, head
from sim.graph import Compute
from sim.machine import cluster
from sim.machine.kernels import compute_seconds
from sim.model import kernel_choice
from sim.model.kernel_choice import Kernels, moved
from sim.model.layer import layer
from sim.model.sizes import model_of
from sim.recipe import presets
from tests.small import keys, small

LLAMA = model_of(presets.complete({**presets.preset("llama3-8b"), "sequence": 4096}))
ONE = keys(tp=1, sp=False, micro_batch=1, sequence=4096)


def operators(model, setting=ONE):
    part = share(small(model, setting))
    return [*embedding(model, part), *layer(model, part), *head(model, part)]


def with_kernels(**chosen):
    return replace(LLAMA, kernels=Kernels(**chosen))


def bytes_of(model, phase, begins, setting=ONE):
    launches = (k for op in operators(model, setting) for k in getattr(op, phase))
    return fsum(k.work.bytes for k in launches if k.name.startswith(begins))


@pytest.fixture(scope="module")
def counted():
    """Return the bytes per element that torch's operators read and write, views left out."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten

    def size(tensor):
        count = tensor.element_size()
        for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
            count *= length if stride else 1
        return count

    class Count(TorchDispatchMode):
        total = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            ins, outs = (
                {id(t): t for t in tree_flatten(x)[0] if isinstance(t, torch.Tensor)}.values()
                for x in ((args, kwargs or {}), out)
            )
            owners = {t.untyped_storage().data_ptr() for t in ins}
            changed = func._schema.is_mutable
            if not changed and all(t.untyped_storage().data_ptr() in owners for t in outs):
                return out  # a view
            picks = "nll_loss" in str(func)  # it reads a logit per row, and writes them all
            self.total += sum(map(size, outs)) + (0 if picks else sum(map(size, ins)))
            return out

    def count(forward, elements):
        with Count() as there:
            out = forward()
        grad = torch.ones_like(out)
        with Count() as back:
            out.backward(grad)
        return there.total / elements, back.total / elements

    return count


def eager_norm(torch):
    x = torch.randn(256, 1024, dtype=torch.bfloat16, requires_grad=True)
    w = torch.ones(1024, dtype=torch.bfloat16, requires_grad=True)

    def forward():
        h = x.float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * w

    return forward, x.numel(), kernel_choice.NORM, kernel_choice.NORM_BACKWARD


def complex_rope(torch):
    q = torch.randn(2, 64, 16, 128, dtype=torch.bfloat16, requires_grad=True)
    turn = torch.ones(1, 64, 1, 64, dtype=torch.complex64)

    def forward():
        pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn).flatten(3).type_as(q)

    return forward, q.numel(), kernel_choice.ROPE, kernel_choice.ROPE


def torch_loss(torch):
    logits = torch.randn(64, 8192, dtype=torch.bfloat16, requires_grad=True)
    target = torch.arange(64)

    def forward():
        return torch.nn.functional.cross_entropy(logits.float(), target)

    return forward, logits.numel(), kernel_choice.LOSS, kernel_choice.LOSS_BACKWARD


@pytest.mark.slow
@pytest.mark.parametrize("what", [eager_norm, complex_rope, torch_loss])
def test_pytorch_moves_these_bytes(what, counted):
    """Torch's dispatcher counts the same bytes per element, but for weights and statistics."""
    import torch

    forward, elements, *passes = what(torch)
    expected = [sum(size for _, size in moved(p, 2)) for p in passes]
    assert counted(forward, elements) == pytest.approx(tuple(expected), rel=0.04)


@pytest.mark.slow
def test_foreach_adam_moves_these_bytes():
    """Torch's operators in place read and write their first tensor; a gradient squared counts once.

    Fused: 28 bytes, as :data:`update.ADAM`.
    """
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        seen = ()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "foreach" in str(func) and args[0][0].numel() > 1:
                lists = {id(a[0]) for a in args if isinstance(a, list) and torch.is_tensor(a[0])}
                self.seen = (*self.seen, 4 * (len(lists) + 1))
            return func(*args, **(kwargs or {}))

    weight = torch.randn(4096, requires_grad=True)
    weight.grad = torch.randn(4096)
    adam = torch.optim.AdamW([weight], foreach=True)
    adam.step()
    with Names() as names:
        adam.step()
    assert sorted(names.seen) == sorted(size for _, size in update.FOREACH)


def test_eager_norm_rope_and_loss_move_their_bytes_in_a_layer():
    """Of 4,096 tokens: 36 and 92 bytes per element of a norm, 20 each way of rotary, 14 and 22."""
    x, turned, logits = 4096 * 4096, 4096 * 40 * 128, 4096 * 128256
    eager = with_kernels(norm="eager", rope="complex", loss="torch")
    assert bytes_of(eager, "forward", "attention_norm") == 36 * x
    assert bytes_of(eager, "backward", "attention_norm_backward") == 92 * x
    assert bytes_of(eager, "backward", "attention_norm_grad_add") == 6 * x
    assert bytes_of(eager, "forward", "rotary") == 20 * turned
    assert bytes_of(eager, "backward", "rotary") == 20 * turned
    assert bytes_of(eager, "forward", "loss") == 14 * logits
    assert bytes_of(eager, "backward", "loss") == 22 * logits
    assert bytes_of(LLAMA, "forward", "loss") == 38 * logits
    fused = with_kernels(loss="fused")
    assert bytes_of(fused, "forward", "loss") + bytes_of(fused, "backward", "loss") == 10 * logits


def test_what_the_loss_keeps():
    """Log-probabilities in fp32; with a fused kernel the gradient in place of the logits."""
    kept = {
        how: {op.name: op.saved for op in operators(with_kernels(loss=how))}["loss"]
        for how in ("megatron", "torch", "fused")
    }
    logits = 4096 * 128256
    assert kept == {"megatron": LOGIT * logits, "torch": LOGIT * logits, "fused": 2 * logits}


def test_a_split_vocabulary_is_reduced_in_a_fused_loss_too():
    half = ONE | {"tp": 2}
    (loss,) = [op for op in operators(with_kernels(loss="fused"), half) if op.name == "loss"]
    assert (loss.edge, loss.buffer) == ("vocabulary", 3 * 4 * 4096)
    torch_and_tp = [op.name for op in operators(with_kernels(loss="torch"), half)]
    assert torch_and_tp == [op.name for op in operators(LLAMA, half)]


PUBLIC = [
    # Liger's H100: complex rotary of Llama 4, 16,384 tokens, 40 heads of 256: 1.455 and 1.482 ms
    (kernel_choice.ROPE, 16384 * 40 * 256, "dgx_h100", 1.455e-3, 0.25),
    # Liger's A100, RMS norm as in Hugging Face's Llama, 2,048 x 32,768: 1.919 and 5.015 ms
    (kernel_choice.NORM, 2048 * 32768, "dgx_a100", 1.919e-3, 0.28),
    (kernel_choice.NORM_BACKWARD, 2048 * 32768, "dgx_a100", 5.015e-3, 0.30),
]


@pytest.mark.parametrize(("passes", "elements", "gpu", "measured", "within"), PUBLIC)
def test_unfused_kernels_take_about_their_public_time(passes, elements, gpu, measured, within):
    """They are a quarter too fast: reductions and strided tensors do not reach a copy's rate."""
    card = cluster.load(gpu, 8).gpu
    took = sum(
        max(found[:2]) + found[2]
        for _, size in moved(passes, 2)
        for found in [compute_seconds(card, Compute("elementwise", 0.0, float(size * elements)))]
    )
    assert took == pytest.approx(measured, rel=within), took


def test_a_fused_loss_takes_about_liger_s_time_on_b200():
    """Fp32 logits of 8,192 tokens and 128,256 words: 1.788 and 2.609 ms (Liger's, at ead96b61)."""
    card, logits = cluster.load("dgx_b200", 8).gpu, 8192 * 128256
    passes = (*kernel_choice.FUSED_LOSS, *kernel_choice.FUSED_LOSS_BACKWARD)
    size = sum(size for _, size in moved(passes, 4))
    _, took, _ = compute_seconds(card, Compute("cross_entropy", 0.0, float(size * logits)))
    assert took == pytest.approx(1.788e-3 + 2.609e-3, rel=0.15)


def test_a_fused_loss_makes_no_copy_of_the_logits():
    """Megatron-LM's holds the 16-bit logits too until its forward ends; here only what is kept."""
    extra = {}
    for how in ("megatron", "fused"):
        program = stage_programs(small(with_kernels(loss=how), ONE), [0], first=True, last=True)[
            "F"
        ]
        ends = [m.bytes for item in program for m in item.memory if m.bytes < 0]
        extra[how] = -fsum(ends)
    assert extra == {"megatron": 2.0 * 4096 * 128256, "fused": 0.0}
