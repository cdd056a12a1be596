"""Curves that users know: step time by bucket size, and speed by the number of GPUs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from sim.runs.run import run

RECIPE = """
[model]
preset = "llama3-8b"
layers = {layers}
hidden = {hidden}
ffn = {ffn}
heads = {heads}
kv_heads = {heads}
vocab = 8192
sequence = {sequence}

[cluster]
topology = "dgx_{gpu}"
gpus = 8

[training]
global_batch = 8
grad_dtype = "bf16"
"""
SMALL = {"layers": 24, "hidden": 768, "ffn": 2048, "heads": 12, "sequence": 512, "gpu": "a100"}
LARGE = {"layers": 8, "hidden": 4096, "ffn": 14336, "heads": 32, "sequence": 4096, "gpu": "h100"}


def seconds(folder: Path, sizes: dict[str, object], gpus: int, **parallelism: object) -> float:
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(**sizes))
    keys: dict[str, object] = {f"parallelism.{key}": value for key, value in parallelism.items()}
    keys["model.attention"] = "flash"  # FSDP alone would have PyTorch's kernel
    scaled = {"cluster.gpus": gpus, "training.global_batch": 2 * gpus}
    return run(path, keys | scaled).timeline.seconds


def test_the_curve_of_bucket_sizes_falls_and_then_rises(tmp_path: Path) -> None:
    """Latencies on the left, a late start on the right: one valley, more than 5 % deep."""
    sizes = [5, 20, 80, 320, 1280]
    curve = [seconds(tmp_path, SMALL, 64, bucket_mb=mb) for mb in sizes]
    best = curve.index(min(curve))
    assert 0 < best < len(curve) - 1
    assert all(less > more for less, more in pairwise(curve[: best + 1]))
    assert all(less <= more for less, more in pairwise(curve[best:]))
    assert min(curve[0], curve[-1]) > 1.05 * curve[best]


def test_without_overlap_there_is_no_valley(tmp_path: Path) -> None:
    """The right side is the lost overlap: reduced all at the end, larger buckets never cost."""
    sizes = [5, 20, 80, 320, 1280]
    late = {"overlap_grad_reduce": False}
    curve = [seconds(tmp_path, SMALL, 64, bucket_mb=mb, **late) for mb in sizes]
    assert all(more <= less * (1 + 1e-9) for less, more in pairwise(curve))


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", [None, {"kind": "fsdp2"}])
def test_every_doubling_costs_little_up_to_256(tmp_path: Path, fsdp: object) -> None:
    """On a fast network, data parallel or sharded: 90 % of the speed of 8 GPUs is left."""
    curve = [seconds(tmp_path, LARGE, gpus, fsdp=fsdp) for gpus in (8, 16, 32, 64, 128, 256)]
    assert max(curve) < curve[0] / 0.9
    assert all(more < 1.05 * less for less, more in pairwise(curve))


def test_sharded_is_about_as_fast_as_data_parallel(tmp_path: Path) -> None:
    """Twice 4,096 tokens on a GPU hide half as many bytes again; gathers slow what runs beside."""
    plain = seconds(tmp_path, LARGE, 256)
    assert plain < seconds(tmp_path, LARGE, 256, fsdp={"kind": "fsdp2"}) < 1.1 * plain
