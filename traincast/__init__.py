"""Simulate distributed training: from a recipe to the timeline of its step, and what it says.

>>> import traincast as tc
>>> result = tc.run("validation/recipes/korthikanti_22b_full.toml")  # doctest: +SKIP
>>> result.summary["step_time_s"]  # doctest: +SKIP

Every public name stands in ``__all__`` and on the page docs/python.md. Each is imported when it is
first used, so that ``import traincast`` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import schedules as schedules
    from schedules.input_error import InputError as InputError
    from sim import plots as plots
    from sim import report as report
    from sim import whatif as whatif
    from sim.analysis import analyses as analyses
    from sim.engine import DeadlockError as DeadlockError
    from sim.engine import simulate as simulate
    from sim.goodput.goodput import goodput as goodput
    from sim.graph import Builder as Builder
    from sim.graph import Fixed as Fixed
    from sim.graph import Graph as Graph
    from sim.machine.cluster import Cluster as Cluster
    from sim.machine.cluster import load as cluster
    from sim.machine.hardware import ideal as ideal
    from sim.memory.curve import curves as memory_curves
    from sim.recipe.recipe import Recipe as Recipe
    from sim.recipe.recipe_file import parse as parse
    from sim.runs.balance import balance as balance
    from sim.runs.check import check as check
    from sim.runs.compare import Way as Way
    from sim.runs.compare import by_schedule as by_schedule
    from sim.runs.compare import by_value as by_value
    from sim.runs.compare import compare as compare
    from sim.runs.forward_run import sharded_forward as sharded_forward
    from sim.runs.run import Result as Result
    from sim.runs.run import load as load
    from sim.runs.run import run as run
    from sim.runs.schedule_run import ScheduleRun as ScheduleRun
    from sim.runs.schedule_run import simulate_schedule as schedule
    from sim.runs.sweep import sweep as sweep
    from sim.runs.winner import why as why
    from sim.search.search import search as search
    from sim.timeline import Timeline as Timeline
    from traces.hta.files import write_rank_files as write_rank_files
    from traces.own.folder import write as write
    from traces.reading import read as read
    from traces.recording import Recording as Recording
    from traces.recording import Selection as Selection
    from traces.replay.replays import Replay as Replay
    from traces.replay.replays import graph_of as replay_graph
    from traces.replay.replays import replay as replay
    from traces.replay.ways import ways as replay_ways
    from traincast import analysis as analysis
    from traincast import extend as extend

    __version__: str

__all__ = [
    "Builder",
    "Cluster",
    "DeadlockError",
    "Fixed",
    "Graph",
    "InputError",
    "Recipe",
    "Recording",
    "Replay",
    "Result",
    "ScheduleRun",
    "Selection",
    "Timeline",
    "Way",
    "__version__",
    "analyses",
    "analysis",
    "balance",
    "by_schedule",
    "by_value",
    "check",
    "cluster",
    "compare",
    "extend",
    "goodput",
    "ideal",
    "load",
    "memory_curves",
    "parse",
    "plots",
    "read",
    "replay",
    "replay_graph",
    "replay_ways",
    "report",
    "run",
    "schedule",
    "schedules",
    "search",
    "sharded_forward",
    "simulate",
    "sweep",
    "whatif",
    "why",
    "write",
    "write_rank_files",
]

_FROM = {
    "load": "sim.runs.run:load",
    "parse": "sim.recipe.recipe_file:parse",
    "run": "sim.runs.run:run",
    "write": "traces.own.folder:write",
    "check": "sim.runs.check:check",
    "balance": "sim.runs.balance:balance",
    "compare": "sim.runs.compare:compare",
    "by_schedule": "sim.runs.compare:by_schedule",
    "by_value": "sim.runs.compare:by_value",
    "why": "sim.runs.winner:why",
    "sweep": "sim.runs.sweep:sweep",
    "search": "sim.search.search:search",
    "goodput": "sim.goodput.goodput:goodput",
    "schedule": "sim.runs.schedule_run:simulate_schedule",
    "sharded_forward": "sim.runs.forward_run:sharded_forward",
    "cluster": "sim.machine.cluster:load",
    "simulate": "sim.engine:simulate",
    "ideal": "sim.machine.hardware:ideal",
    "analyses": "sim.analysis:analyses",
    "memory_curves": "sim.memory.curve:curves",
    "read": "traces.reading:read",
    "replay": "traces.replay.replays:replay",
    "replay_ways": "traces.replay.ways:ways",
    "replay_graph": "traces.replay.replays:graph_of",
    "write_rank_files": "traces.hta.files:write_rank_files",
    "analysis": "traincast.analysis",
    "plots": "sim.plots",
    "report": "sim.report",
    "whatif": "sim.whatif",
    "schedules": "schedules",
    "extend": "traincast.extend",
    "Recipe": "sim.recipe.recipe:Recipe",
    "Result": "sim.runs.run:Result",
    "Way": "sim.runs.compare:Way",
    "ScheduleRun": "sim.runs.schedule_run:ScheduleRun",
    "Cluster": "sim.machine.cluster:Cluster",
    "Timeline": "sim.timeline:Timeline",
    "Graph": "sim.graph:Graph",
    "Builder": "sim.graph:Builder",
    "Fixed": "sim.graph:Fixed",
    "Recording": "traces.recording:Recording",
    "Selection": "traces.recording:Selection",
    "Replay": "traces.replay.replays:Replay",
    "InputError": "schedules.input_error:InputError",
    "DeadlockError": "sim.engine:DeadlockError",
}
"""The module of every public name and what it is called there: the imports above, but late."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "__version__":
        from importlib.metadata import version

        return version("traincast")
    if name not in _FROM:
        raise AttributeError(f"module 'traincast' has no attribute {name!r}")
    module, _, called = _FROM[name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, called) if called else found


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(__all__)
