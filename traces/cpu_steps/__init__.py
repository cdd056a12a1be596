"""Steps of parallel trainings on CPU processes: their operators, collectives and waits."""

from traces.cpu_steps.run import CpuRun, Leaf, Moved, RankStep

__all__ = ["CpuRun", "Leaf", "Moved", "RankStep"]
