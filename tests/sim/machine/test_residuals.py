"""Errors of prices: those of the page of calibration, and no step time."""

from __future__ import annotations

from dataclasses import replace
from math import log, pi, sqrt
from pathlib import Path

import pytest

from sim.graph import Communication, Compute, Copy
from sim.machine import cluster
from sim.machine.residuals import alike, family, residuals
from validation import residuals as made
from validation import transfer

PAGE = (Path(__file__).parents[3] / "validation" / "calibration.md").read_text()
LINES = """
| a100 | gemm bf16 | 900 | 4.0 % | 0.0 % | 9.0 % | 9.0 % |
| a100 | check, gemm: trace | 7 | 6.0 % | -3.0 % | 9.0 % | 9.0 % |
| h100 | check, gemm: search | 1 | 4.0 % | 4.0 % | 9.0 % | 9.0 % |
| h100 | check, gemm: search, fp8 | 1 | 9.0 % | 9.0 % | 9.0 % | 9.0 % |
| a100 | norm | 1 | 0.0 % | 0.0 % | 9.0 % | 9.0 % |
| a100 | elementwise | 5 | 12.0 % | -7.0 % | 9.0 % | 9.0 % |
| h100 | elementwise | 5 | 12.0 % | -7.0 % | 9.0 % | 9.0 % |
| h100 | check, attention: inference prefill | 9 | 20.0 % | -20.0 % | 9.0 % | 9.0 % |
"""


@pytest.mark.slow
def test_the_table_is_that_of_the_page():
    assert made.TABLE.read_text() == made.table(PAGE), f"run: {made.COMMAND}"


@pytest.mark.slow
def test_a_familys_error_is_of_rows_held_out_and_a_shapes_of_those_fitted():
    """3 and 4 %: 3.54 %. A family without held-out rows takes all of them: 3, 4 and 9 %."""
    found = dict(block.split("]\n") for block in made.table(LINES).split("\n[")[1:])
    assert found["gemm"].split()[:6] == ["family", "=", "0.035", "shape", "=", "0.050"]
    assert found["gemm_fp8"].split()[2] == "0.090"
    every = sqrt((0.03**2 + 0.04**2 + 0.09**2) / 3)
    shape = 0.12 * sqrt(pi / 2)  # the norm was read off itself
    expected = f"family = {every:.3f} shape = {shape:.3f}"
    assert found["memory_kernels"].split()[:6] == expected.split()


def test_a_chip_with_anothers_constants_is_off_by_their_difference(monkeypatch):
    """Two chips whose attention runs at 0.5 and 0.25 of the peak: a factor of 2 each way."""

    def half(name, gpus):
        on = cluster.load(name, gpus)
        own = {"forward": 0.5 if name == "dgx_a100" else 0.25, "backward": 0.5, "keys": 0.0,
               "quantisation": 0.0, "memory": 1.0, "fixed": 0.0}  # fmt: skip
        return replace(on, gpu=replace(on.gpu, costs={**on.gpu.costs, "attention": own}))

    monkeypatch.setattr(transfer, "load", half)
    monkeypatch.setattr(transfer, "GPUS", ("dgx_a100", "dgx_h100"))
    assert transfer.transfer("attention") == pytest.approx(log(2))
    assert transfer.transfer("attention_backward") == 0.0


def test_every_price_but_of_copies_has_an_error():
    on = cluster.load("dgx_a100", 16)
    works = {
        "gemm": Compute("gemm", 1.0, 1.0, (1, 2, 3, 4)),
        "gemm_fp8": Compute("grouped_gemm", 1.0, 1.0, (1, 2, 3, 4), "fp8"),
        "attention": Compute("attention", 1.0, 1.0, (1, 2, 3, 3, 64)),
        "attention_backward": Compute("attention_backward", 1.0, 1.0, (1, 2, 3, 3, 64)),
        "memory_kernels": Compute("softmax", 1.0, 1.0),
        "collectives": Communication("all_gather", 8.0, (0, 7), "tp"),
        "collectives_between_nodes": Communication("all_gather", 8.0, (0, 8), "dp"),
        "p2p": Communication("ring_exchange", 8.0, (0, 1), "cp"),
        "p2p_between_nodes": Communication("p2p", 8.0, (0, 8), "pp"),
    }
    assert {family(work, on) for work in works.values()} == residuals().keys()
    for name, work in works.items():
        assert family(work, on) == name
    assert family(Copy(8.0, "h2d"), on) == ""


@pytest.mark.parametrize("change", [{"bytes": 9.0}, {"kind": "norm"}])
def test_kernels_of_another_size_or_kind_are_off_by_themselves(change):
    work = Compute("softmax", 1.0, 8.0)
    assert alike(work) != alike(work._replace(**change))
    assert alike(work) == alike(work._replace(flops=2.0))
