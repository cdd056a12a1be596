"""Zero Bubble, Table 5: the interleaved rows, by the closed form and by simulation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.runs.schedule_run import simulate_schedule


def bubble(p: int, v: int, whole: float, hops: int, hop: float) -> float:
    """Seconds that a rank idles, where F, I and W of all its stages take ``whole`` together."""
    return (p - 1) * whole / v + hops * hop


@pytest.mark.slow
def test_interleaved_rates_of_table_5(shared: Path) -> None:
    """Qi et al. 2023: 2 (p v - 1) - p hops in the closed form give every digit printed.

    A simulation, by longest own span, has all 2 (p v - 1) in it: 0.1 to 0.3 points more.
    """
    file = shared / "published/zero_bubble_bubble_rates.json"
    found = 0
    print("\n p    m   v  printed  formula  simulated")
    for row in json.loads(file.read_text()):
        profile = row.get("profile_ms")
        if not profile or row["schedule"] != "interleaved_1f1b":
            continue
        p, v, dp = (row["parallelism"][axis] for axis in ("pp", "vp", "dp"))
        m = row["global_batch"] // row["micro_batch"] // dp
        f, i, w, hop = (profile[key] for key in ("T_F", "T_B", "T_W", "T_comm"))
        whole, all_hops, printed = f + i + w, 2 * (p * v - 1), row["measured"]["bubble_fraction"]
        idle = bubble(p, v, whole, all_hops - p, hop)
        formula = idle / (idle + m * whole)
        assert round(formula, 4) == printed, row["id"]

        times = {"F": f / v, "I": i / v, "W": w / v, "p2p": hop}
        ran = simulate_schedule("interleaved_1f1b", p, m, v, times)
        span, rate = ran["longest_span_s"], ran["bubble_rate_longest_span"]
        print(f"{p:2} {m:4} {v:3}  {printed:7.4f}  {formula:7.4f}  {rate:9.4f}")
        assert span - m * whole == pytest.approx(bubble(p, v, whole, all_hops, hop)), row["id"]
        assert 0.001 <= round(rate - formula, 3) <= 0.003, row["id"]
        found += 1
    assert found >= 5
