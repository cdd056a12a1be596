"""Schedules and strategies outside of the package: a path in the recipe, and what is refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import schedules
from sim.recipe import recipe_file
from sim.recipe.recipe_file import load
from sim.runs.compare import by_schedule
from sim.runs.run import run
from traincast.main import app

RECIPE = """
[model]
preset = "llama3-8b"
layers = 4
vocab = 1024

[cluster]
topology = "dgx_h100"
gpus = 4

[parallelism]
pp = 2
{parallelism}

[schedule]
{schedule}

[training]
global_batch = 8
"""
GPIPE = '''
from schedules import Plan, Step

P2P = "batched"


def mine(ranks: int, microbatches: int) -> Plan:
    """All forwards, then all backwards."""
    return [[Step(r, k, m) for k in "FB" for m in range(microbatches)] for r in range(ranks)]
'''
SAME = "def same(kind, program):\n    return program\n"
HEAD = "from schedules import Step\ndef mine(ranks, microbatches):\n    "


def recipe(folder: Path, schedule: str = "", parallelism: str = "") -> Path:
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(schedule=schedule, parallelism=parallelism))
    return path


def test_it_runs_as_the_same_schedule_of_the_package(tmp_path: Path) -> None:
    """From the recipe's folder, whatever the working folder; written out it is loaded again."""
    (tmp_path / "mine.py").write_text(GPIPE)
    path = recipe(tmp_path, 'name = "./mine.py"')
    mine, usual = run(path), run(path, {"schedule.name": "gpipe"})
    assert mine.timeline.seconds == usual.timeline.seconds
    assert [*mine.job.plan] == [*usual.job.plan]
    (tmp_path / "again.toml").write_text(recipe_file.dump(mine.recipe))
    assert load(tmp_path / "again.toml") == mine.recipe


def test_it_is_compared_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GPIPE)
    path = recipe(tmp_path, 'name = "./mine.py"')
    ways = by_schedule(["gpipe", str(tmp_path / "mine.py")], load(path))
    assert [*ways] == ["gpipe", "mine.py"]
    assert "mine.py" in by_schedule(["all"], load(path))


def test_options_and_stages_are_those_that_the_file_says(tmp_path: Path) -> None:
    source = GPIPE.replace("microbatches: int)", "microbatches: int, chunks: int = 2)")
    (tmp_path / "mine.py").write_text(source.replace("range(ranks)]", "range(ranks)]  # half"))
    name = str(tmp_path / "mine.py")
    assert schedules.options(name) == ("chunks",)
    assert schedules.stages_per_rank(name) == 2
    with pytest.raises(ValueError, match=r"mine\.py returns 2 stages; there are 4 to run"):
        schedules.load(name)(2, 4)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (HEAD + "return 7", "returns an int; a plan is a list with a list of steps for each rank"),
        (HEAD + "return None", "returns None; a plan is"),
        (HEAD + "return []", "returns 0 lists of steps; there are 2 ranks"),
        (HEAD + "return [[1]] * 2", r"returns '1' at rank 0, position 0; a step is Step\("),
        (HEAD + 'return [[Step(0, "X", 0)]] * 2', r"returns '0X0' at rank 0, position 0"),
        (HEAD + 'return [[Step(0, "F", 0)]] * 2', "returns 1 stages; there are 2 to run"),
        (HEAD + "return [][3]", "line 3: IndexError: list index out of range"),
        (HEAD + 'raise ValueError("odd\\nranks only")', "line 3: odd ranks only"),
        ("def mine(:", "line 1: SyntaxError: invalid syntax"),
        ("import nothing_of_that_name", "line 1: ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "line 1: SystemExit: 3"),
        ("def other(): pass",
         "defines no function mine; the schedule is the function of that name"),
        ("def mine(): pass", r"TypeError: mine\(\) takes 0 positional arguments but 2 were given"),
    ],
)  # fmt: skip
def test_what_is_no_schedule_is_refused_in_a_sentence(tmp_path: Path, code: str, says: str) -> None:
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(ValueError, match=says) as error:
        run(recipe(tmp_path, 'name = "./mine.py"'))
    assert "\n" not in str(error.value)
    assert "mine.py" in str(error.value)


def test_an_order_that_stops_is_refused(tmp_path: Path) -> None:
    code = GPIPE.replace('for k in "FB"', 'for k in ("BF" if r else "FB")')
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(ValueError, match="rank 1, position 0: 1B0"):
        run(recipe(tmp_path, 'name = "./mine.py"'))


def test_the_command_says_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = "schedule ./mine.py --ranks 2 --microbatches 3"
    absent = CliRunner().invoke(app, shlex.split(line))
    (tmp_path / "mine.py").write_text(GPIPE)
    there = CliRunner().invoke(app, shlex.split(line))
    assert isinstance(absent.exception, ValueError | SystemExit)
    assert there.exit_code == 0, there.output
    assert "makespan" in there.output


def test_a_strategy_that_changes_nothing_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "same.py").write_text(SAME)
    plain = run(recipe(tmp_path)).timeline
    mine = run(recipe(tmp_path, parallelism='strategy = "./same.py"')).timeline
    assert (mine.end == plain.end).all()


def test_a_strategy_may_add_a_kernel(tmp_path: Path) -> None:
    """Of 7 ms in front of every forward, on a graph that is otherwise the same."""
    code = (
        "from sim.graph import Fixed\nfrom sim.builder.program import Kernel\n"
        "from sim.builder.strategies.draft import ProgramDraft\n"
        "def same(kind, program):\n    draft = ProgramDraft(program)\n"
        "    if kind == 'F':\n        draft.put(('new', 0), Kernel('new', Fixed(7e-3), 'F'))\n"
        "    return draft.finish()\n"
    )
    (tmp_path / "same.py").write_text(code)
    found = run(recipe(tmp_path, parallelism='strategy = "./same.py"')).timeline.to_pandas()
    new = found[found.name == "new"]
    assert len(new) == 2 * 4  # stages, microbatches
    assert (new.end - new.start).tolist() == pytest.approx([7e-3] * 8)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def same(kind, program): return 3", "returns '3' for F; a program is a list of"),
        ("def same(kind, program): return []", "at least one"),
        ("def same(kind, program): return ['x']", "returns 'x' at position 0 of F; an item is a"),
        ("def same(kind, program): return program[::-1]", "which does not come before it"),
        ("def same(kind, program):\n"
         "    return [program[0], program[1]._replace(needs=(-1,)), *program[2:]]",
         "position 1 of F, needs position -1, which does not come before it"),
        ("def same(kind): return 1", "TypeError: same"),
        ("from sim.builder.program import Collective\ndef same(kind, program):\n"
         "    return [Collective('c', 'xp', 'all_reduce', 8.0, 'F'), *program]",
         "c of F is over the axis 'xp'; there are tp, cp, ep, etp, dp, edp"),
        *((f"import math\nfrom sim.graph import Compute\ndef same(kind, program):\n"
           f"    return [program[0]._replace({change}), *program[1:]]",
           f"position 0 of F has {change.partition('=')[0]} = .*; it must be ")
          for change in ("name=7", "phase='Z'", "layer=10**9", "layer='x'", "needs=None",
                         "needs=(0.0,)", "memory=(1,)", "stream=3", "ahead=1", "work=None",
                         "work=Compute('norm', 0.0, math.nan)", "work=Compute('norm', 0.0, '1')",
                         "work=Compute('norm', 0.0, -1.0)", "work=Compute('gemm', 1.0, 1.0, 'a')")),
        *((f"import math\nfrom sim.builder.program import Collective\ndef same(kind, program):\n"
           f"    return [Collective('c', 'tp', {fields}, 'F'), *program]", "of F has .*; it must")
          for fields in ("'sum', 8.0", "'all_reduce', math.inf", "'all_reduce', -1")),
    ],
)  # fmt: skip
def test_what_is_no_strategy_is_refused(tmp_path: Path, code: str, says: str) -> None:
    (tmp_path / "same.py").write_text(code)
    with pytest.raises(ValueError, match=says) as error:
        run(recipe(tmp_path, parallelism='strategy = "./same.py"\ntp = 2'))
    assert "\n" not in str(error.value)


def test_a_strategy_is_a_file_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"strategy = \"zero\" is not a Python file"):
        load(recipe(tmp_path, parallelism='strategy = "zero"'))
    with pytest.raises(ValueError, match=r"parallelism.strategy: there is no file"):
        load(recipe(tmp_path, parallelism='strategy = "./none.py"'))
