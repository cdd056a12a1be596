"""No result hangs on how ``sum`` rounds: from Python 3.12 on it compensates, before it does not."""

from __future__ import annotations

import ast
import builtins
import math
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from sim.analysis.bubbles import bubbles
from sim.analysis.path import by_cause, path
from tests.recipes import ran

ROOT = Path(__file__).parents[2]
EXACT = (
    "sim/engine", "sim/analysis", "sim/machine/collectives", "sim/machine/cluster.py",
    "sim/machine/kernels.py",
)  # fmt: skip
"""What times and their causes are made of: nothing here adds up by ``sum``."""


def test_nothing_that_makes_times_adds_up_by_sum() -> None:
    files = [
        file
        for name in EXACT
        for file in ([ROOT / name] if name.endswith(".py") else sorted((ROOT / name).rglob("*.py")))
    ]
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "sum"
        if not counts(node.args[0])
    ]
    assert len(files) > 20
    assert found == []


def counts(of: ast.expr) -> bool:
    """Whether the sum is of truths or of lengths, which are whole."""
    if isinstance(of, ast.Subscript):
        return ast.unparse(of.value) == "sizes"
    if ast.unparse(of) in ("cells.values()", "halves.values()"):  # places in a block of memory
        return True
    if ast.unparse(of) in ("(of.size for of in some)", "map(len, used)"):  # sizes of arrays
        return True
    return isinstance(of, ast.GeneratorExp) and "isinstance" in ast.unparse(of.elt)


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2])
def test_no_sum_of_a_run_rounds_otherwise_on_another_python(
    monkeypatch: pytest.MonkeyPatch, tp: int
) -> None:
    """Every ``sum`` of a run and its analyses, wherever in the project, is exact or of one term."""
    wrong, seen = [], []

    def checked(values: Iterable[float], start: float = 0) -> float:
        some, where = list(values), sys._getframe(1).f_code
        total = start
        for value in some:
            total = total + value
        if str(ROOT) in where.co_filename and any(isinstance(value, float) for value in some):
            seen.append(where.co_qualname)
            if total != math.fsum([start, *some]):
                wrong.append((where.co_filename, where.co_qualname))
        return total

    way = {"schedule": {"layers_per_stage": [3, 2]}, "training": {"recompute": "selective"}}
    way |= {"gpus": 16, "tp": tp, "pp": 2, "sp": tp > 1}
    monkeypatch.setattr(builtins, "sum", checked)
    slow = {"rank": 3, "compute": 1.3}
    result = ran({"preset": "llama3-8b", "layers": 5}, 24, slow, **way)
    assert result.summary["step_time_s"] > 0
    by_cause(path(result.timeline))
    bubbles(result.timeline)
    monkeypatch.undo()
    assert wrong == []
