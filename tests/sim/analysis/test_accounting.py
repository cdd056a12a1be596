"""What the seconds of a step go to, against sums by hand."""

from __future__ import annotations

from dataclasses import replace
from math import fsum

import pytest

from sim.analysis.accounting import accounting
from sim.engine import simulate
from sim.graph import Builder, Fixed
from sim.machine.hardware import ideal
from sim.runs.schedule_run import simulate_schedule


def test_gpipe_has_its_bubble() -> None:
    """Each rank computes m (F + B); rank 0 first waits for nothing and idles (p - 1)(F + B)."""
    found = accounting(simulate_schedule("gpipe", 4, 8, times={"F": 5, "I": 4, "W": 3}).timeline)
    assert found == pytest.approx({"compute": 8 * 12, "waiting": 3 * 12})


def test_a_slow_stage_is_imbalance() -> None:
    """Stage 2 takes a second longer: 8 seconds in all, a quarter of which is in the mean."""
    times = {"F": [5, 5, 6, 5], "I": 4, "W": 3}
    timeline = simulate_schedule("gpipe", 4, 8, times=times).timeline
    found = accounting(timeline)
    assert found["compute"] == pytest.approx(8 * 12 + 2)
    assert found["imbalance"] == pytest.approx(6)
    assert found["bubble"] == pytest.approx(2 * 5 + 2 * 7)  # 10 to warm up, 14 to drain
    assert fsum(found.values()) == pytest.approx(timeline.seconds)


@pytest.mark.parametrize("others", [1, 3])
def test_recomputation_counts_by_itself_and_ranks_count_as_often_as_they_stand_for(
    others: int,
) -> None:
    """Rank 0 computes 5 + 2 again + 3; rank 1 stands for itself or for three ranks: 5."""
    builder = Builder()
    first = builder.add("F", 0, "compute", Fixed(5.0), phase="F")
    again = builder.add("R", 0, "compute", Fixed(2.0), [first], phase="R")
    builder.add("W", 0, "compute", Fixed(3.0), [again], phase="W")
    builder.add("F", 1, "compute", Fixed(5.0), phase="F")
    graph = replace(builder.graph(), stands_for={1: others})
    found = accounting(simulate(graph, ideal(graph)))
    ranks = 1 + others
    compute, recomputed = (8 + 5 * others) / ranks, 2 / ranks
    assert found == pytest.approx(
        {"compute": compute, "recomputed": recomputed, "imbalance": 10 - compute - recomputed}
    )
