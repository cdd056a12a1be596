"""Collectives between nodes: constants are those of their fits, rows come out as measured."""

from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("scipy", reason="calibration needs traincast[calibrate]")

from sim.machine import topology
from traces.calibration import between_nodes, network
from traces.calibration.between_nodes_model import Term, solved
from traces.calibration.nccl_report import LARGE, page
from traces.calibration.nccl_rows import Row, error, rows

PAGE = Path(__file__).parents[3] / "validation" / "collectives.md"
ALPS = [(nodes, k) for nodes in (64, 128, 256, 512) for k in (0, 2)]


def test_unknowns_of_a_straight_line_are_found():
    """Two rows of 10 us and 2 us a node, and a share that nothing asks for stays at 0."""
    some = [Row("m", n, 8, "all_reduce", "auto", 1, 10.0 + 2 * n, "fit", "") for n in (2, 8)]
    terms = [Term("base", lambda _: 1.0), Term("hop", lambda row: row.nodes)]
    assert solved(some, terms, lambda _: 0.0) == pytest.approx({"base": 10, "hop": 2})
    assert solved(some, terms, lambda row: 10.0) == pytest.approx({"base": 0, "hop": 2})


@pytest.mark.slow
def test_topologies_hold_what_is_fitted():
    fits = between_nodes.fits()
    assert len(fits) > 20
    for name, collective, protocol, gpus, constants in fits:
        table = topology.read(name)["collectives"][collective][protocol]
        for key, value in constants.items():
            found = table[key]
            found = found[str(gpus)] if isinstance(found, Mapping) else found
            unit = 1.0 if "share" in key else 1e-6
            assert found == pytest.approx(value * unit, rel=0.02), (name, collective, protocol)


@pytest.mark.parametrize("row", [r for r in rows() if r.bytes >= LARGE and r.nodes in (10, 32)
                                 and r.machine == "dgx_h100" and r.gpus == 8],
                         ids=lambda r: f"{r.nodes}-{r.collective}-{r.bytes}")  # fmt: skip
def test_large_collectives_of_80_and_256_h100_are_within_12_percent(row):
    assert abs(error(row)) < 0.12


@pytest.mark.parametrize("row", [r for r in rows() if r.nodes == 1 and r.bytes >= LARGE],
                         ids=lambda r: f"{r.machine}-{r.collective}-{r.bytes}")  # fmt: skip
def test_large_collectives_of_one_node_are_within_12_percent(row):
    assert abs(error(row)) < 0.12


@pytest.mark.slow
def test_others_between_nodes_are_off_by_a_tenth_at_most_on_average():
    """H100, A100 and Elastic Fabric Adapter; B200's two clusters lie on both sides of one value."""
    for machine, most in (("dgx_h100", 0.05), ("aws_p5", 0.08), ("aws_p4d", 0.03),
                          ("a100_4nic", 0.04)):  # fmt: skip
        some = [r for r in rows() if r.machine == machine and r.nodes > 1 and r.bytes >= LARGE]
        assert sum(abs(error(row)) for row in some) / len(some) < most


@pytest.mark.slow
def test_the_least_of_all_reduces_over_many_nodes_are_within_a_quarter():
    """16 bytes on 256 A100 and 128 H100, and on 16 to 32 H100."""
    tiny = [r for r in rows() if r.bytes <= 128 and r.nodes > 1]
    assert {row.nodes for row in tiny} == {2, 4, 16, 32}
    assert max(abs(error(row)) for row in tiny) < 0.15


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "k"), ALPS)
def test_small_all_reduces_over_hundreds_of_nodes_of_alps(nodes, k):
    """8 bytes on 64 and 128 nodes took longer than on 256 and 512; all else within a quarter."""
    size, us = network.ALPS_SIZES[k], network.ALPS[nodes][k]
    row = Row("alps_gh200", nodes, 4, "all_reduce", "auto", size, us, "fit", "")
    assert abs(error(row)) < (0.45 if k == 0 and nodes < 256 else 0.25)


@pytest.mark.slow
def test_the_committed_page_is_of_these_topologies():
    assert page() == PAGE.read_text(encoding="utf-8")
