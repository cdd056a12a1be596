"""Jobs of other programs that public reports are about, with their right figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim import run

GIB = 2**30


@pytest.mark.slow
def test_a_pipeline_of_torchtitan_with_fsdp_keeps_whole_gradients(shared: Path) -> None:
    """4 bytes for each of a stage's 4.015e9 parameters, reduced once a step."""
    result = run(shared.parent / "cases/reports/11-torchtitan-pp-fsdp/recipe.toml")
    memory = result.summary["memory"][0]
    assert memory["by_category"]["gradients"] / GIB == pytest.approx(14.96, abs=0.005)
    assert max(m["peak_bytes"] for m in result.summary["memory"]) / GIB == pytest.approx(
        33.95, abs=0.01
    )
    assert result.summary["step_time_s"] == pytest.approx(0.9440, rel=5e-3)
