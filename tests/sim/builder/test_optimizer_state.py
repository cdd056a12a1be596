"""Adam's state in other numbers than fp32: bytes kept, moved and copied, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from sim.builder.program import Collective, Item
from sim.builder.strategies.data import Bucket
from sim.builder.strategies.optimizer import Tail, tail
from sim.builder.strategies.update import kept
from sim.memory.curve import peaks
from sim.recipe import recipe_file
from sim.recipe.recipe import Recipe
from sim.recipe.sections import StateTable
from sim.runs.check import check
from sim.runs.run import run
from tests.small import replicas

pytestmark = pytest.mark.slow

N = 1200  # parameters of a tail
BUCKETS = [[Bucket(N, 9, frozenset({0}))]]
NONE = {"master": "none", "first": "bf16", "second": "bf16"}
FP8 = {"master": "fp16", "first": "fp8", "second": "fp8"}


def state(master: Any = "fp32", first: Any = "fp32", second: Any = "fp32") -> StateTable:
    return StateTable(master=master, first=first, second=second)


KEPT = [
    (state(), "bf16", 4 + 4 + 4),
    (state(), "fp32", 4 + 4),  # the weights are the master
    (state("none", "bf16", "bf16"), "bf16", 2 + 2),
    (state("bf16", "bf16", "bf16"), "bf16", 2 + 2),
    (state("fp16", "fp8", "bf16"), "bf16", 2 + 1 + 2),
    (state("fp16", "fp8", "bf16"), "fp16", 1 + 2),
    (state("remainder"), "bf16", 2 + 4 + 4),
    (state("none", "bf16", "fp32"), "fp32", 2 + 4),
]


@pytest.mark.parametrize(("state", "dtype", "size"), KEPT)
def test_bytes_kept(state: StateTable, dtype: str, size: int) -> None:
    assert kept(replicas(1, dtype=dtype, optimizer_state=state).training) == size
    assert kept(replicas(1, dtype=dtype).training) == (12 if dtype != "fp32" else 8)
    assert kept(replicas(1, dtype=dtype, optimizer="sgd").training) == (4 if dtype != "fp32" else 0)


def moved(items: list[Item]) -> dict[str, float]:
    return {i.name: i.work.bytes / N for i in items if not isinstance(i, Collective)}


MOVED = [
    # gradient read, weight written, master and both moments read and written
    (state(), "fp32", {"adam": 4 + 2 + 8 + 8 + 8}),
    (state(), "bf16", {"adam": 2 + 2 + 8 + 8 + 8}),
    # the weight is read too where no whole copy is
    (state("none", "bf16", "bf16"), "bf16", {"adam": 2 + 4 + 4 + 4}),
    (state("remainder", "fp32", "bf16"), "fp32", {"adam": 4 + 4 + 4 + 8 + 4}),
    # to fp32 and back: a cast; a maximum and a cast; fp16 is multiplied by its scale each way too
    (state("fp16", "fp8", "fp32"), "fp32",
     {"widen_state": 6 + 8 + 5, "adam": 4 + 2 + 8 + 8 + 8, "narrow_state": 4 + 8 + 6 + 4 + 5}),
]  # fmt: skip


@pytest.mark.parametrize(("state", "grad", "each"), MOVED)
@pytest.mark.parametrize(("zero", "share"), [(0, 1), (1, 4)])
def test_bytes_moved(
    state: StateTable, grad: str, each: dict[str, float], zero: int, share: int
) -> None:
    """Gradients are taken as they are: none is copied, and the norm and clip see their width."""
    data = replicas(degree=4, zero=zero, grad_dtype=grad, optimizer_state=state)
    size = {"fp32": 4, "bf16": 2}[grad]
    want = {"unscale": 2 * size, "grad_norm": size, "clip": 2 * size} | each
    got = moved(list(tail(Tail(N, loss_scale=True), BUCKETS, data, 1)))
    assert got == {name: per / share for name, per in want.items()}
    assert list(got)[3:] == list(each)


def test_what_is_kept_in_fp8_is_written_so() -> None:
    """Half of the weights are of one byte: 1.5 on the mean are written."""
    data = replicas(degree=1, optimizer_state=state())
    (adam,) = (i for i in tail(Tail(N, linear=N // 2), [], data, 1) if i.name == "adam")
    assert moved([adam]) == {"adam": 4 + 1.5 + 24}


def recipe(state: dict[str, str] | None, **tables: Any) -> Recipe:
    base: dict[str, Any] = {
        "model": {"preset": "llama3-8b", "layers": 2, "vocab": 1024, "sequence": 256},
        "cluster": {"topology": "dgx_h100", "gpus": 4},
        "training": {"global_batch": 8, "grad_dtype": "bf16"},
    }
    for name, keys in tables.items():
        base[name] = {**base.get(name, {}), **keys}
    if state is not None:
        base["training"]["optimizer_state"] = state
    return recipe_file.parse(base)


PARAMETERS = 2 * (4096 * (4096 + 2 * 1024) + 4096**2 + 3 * 4096 * 14336 + 2 * 4096)
PARAMETERS += 2 * 1024 * 4096 + 4096


@pytest.mark.parametrize(
    ("state", "parallelism", "weights", "gradients", "optimizer"),
    [
        (None, {}, 2, 2, 12),
        (NONE, {}, 2, 2, 4),
        (NONE, {"zero": 1}, 2, 2, 4 / 4),
        (NONE, {"fsdp": {}}, 2 / 4, 2 / 4, 4 / 4),
        (FP8, {"zero": 2}, 2, 2 / 4, (2 + 1 + 1) / 4),
        ({"master": "remainder"}, {"zero": 1}, 2, 2, (2 + 8) / 4),
    ],
)
def test_memory_of_a_recipe(
    state: dict[str, str] | None,
    parallelism: dict[str, Any],
    weights: float,
    gradients: float,
    optimizer: float,
) -> None:
    """Moments of bf16 without a master copy: 8 bytes a parameter in all."""
    job = recipe(state, parallelism=parallelism)
    result = run(job)
    held = result.timeline.graph.persistent[0]
    for category, each in (
        ("weights", weights),
        ("gradients", gradients),
        ("optimizer", optimizer),
    ):
        assert held[category] == pytest.approx(each * PARAMETERS, rel=1e-12), category
    said = check(job)["memory"][0]["peak_bytes"]
    assert said == pytest.approx(result.summary["memory"][0]["peak_bytes"], rel=1e-9)


def test_copies_are_there_during_the_update() -> None:
    """Of both fp8 moments 4 bytes a parameter; the peak, as little is kept of 256 tokens."""
    state = {"first": "fp8", "second": "fp8"}
    timeline = run(recipe(state, training={"global_batch": 4})).timeline
    (peak, *_) = peaks(timeline)
    copies = 2 * 4 * PARAMETERS
    persistent = sum(timeline.graph.persistent[0].values())
    assert peak.by_category["optimizer_copies"] == copies
    assert peak.peak_bytes == pytest.approx(persistent + copies, rel=1e-12)
    ops = timeline.to_pandas()
    begin, end = (ops[ops.name == f"{name}_state"] for name in ("widen", "narrow"))
    assert begin.start.min() <= peak.seconds < end.end.max()


def test_the_host_keeps_and_moves_the_same() -> None:
    """Of half of the parameters: master 4, moments 2 each, gradient 4; 2 (4 + 2 + 2) + 4 moved."""
    state = {"first": "bf16", "second": "bf16"}
    result = run(recipe(state, training={"offload": {"optimizer": 0.5}}))
    (host,) = result.summary["host_memory"]
    assert host["by_category"] == {"optimizer": PARAMETERS / 2 * 8, "gradients": PARAMETERS / 2 * 4}
    assert result.timeline.graph.persistent[0]["optimizer"] == PARAMETERS / 2 * 8
    (work,) = {w for w in result.timeline.graph.works if getattr(w, "kind", "") == "host_adam"}
    assert work.bytes == pytest.approx(PARAMETERS / 2 * 20, rel=1e-12)


def test_torch_keeps_moments_as_wide_as_parameters() -> None:
    """AdamW of parameters in bf16, so 4 bytes each; it has no master copy."""
    torch = pytest.importorskip("torch")
    weights = torch.nn.Parameter(torch.ones(7, 5, dtype=torch.bfloat16))
    weights.grad = torch.ones_like(weights)
    optimizer = torch.optim.AdamW([weights])
    optimizer.step()
    kinds = [t for t in optimizer.state[weights].values() if t.numel() == 35]
    data = replicas(1, optimizer_state=state("none", "bf16", "bf16"))
    assert sum(t.element_size() for t in kinds) == kept(data.training)


REFUSED: list[tuple[dict[str, str], dict[str, Any], str]] = [
    ({"master": "fp8"}, {}, "must be 'fp32', 'fp16', 'bf16', 'remainder' or 'none'"),
    ({"third": "fp8"}, {}, "unknown key training.optimizer_state.third"),
    (NONE, {"optimizer": "sgd"}, 'optimizer_state is for training.optimizer = "adam", not "sgd"'),
    ({"master": "bf16"}, {"dtype": "fp32"}, 'master = "bf16" does not go with training.dtype'),
    ({"master": "remainder"}, {"dtype": "fp16"}, '"fp32" or "fp16" or "none" would do'),
    (NONE, {"fp8": {"params": True}}, 'master = "none" needs weights of 16 bits'),
    (NONE, {"offload": "optimizer"}, 'master = "none" is not simulated with training.offload'),
    ({"second": "fp8"}, {"offload": "optimizer"}, '"fp32" or "bf16" would do'),
]


@pytest.mark.parametrize(("state", "training", "sentence"), REFUSED)
def test_a_refusal_is_one_sentence(
    state: dict[str, str], training: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        recipe(state, training=training)
    assert sentence in str(error.value)
