"""A strategy outside the package: a file's function that rewrites a stage's programs.

``NAME.py`` defines ``NAME(kind, program)``, which is called with each of a stage's programs (F, B,
I and W) and returns the one to run: kernels and collectives of :mod:`sim.builder.program`. It is
applied after tensor, context and expert parallelism and before offload and data parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schedules.input_error import InputError
from schedules.user_code import function
from sim.builder.blocks import OperatorBlock
from sim.builder.job import Job
from sim.builder.program import Collective, Kernel, Program
from sim.strategies.user_file.items import fault

AXES = ("tp", "cp", "ep", "etp", "dp", "edp")  # every rank of a stage has a group on these


def programs(
    job: Job, made: Mapping[str, Program], blocks: Sequence[OperatorBlock], last: bool
) -> Mapping[str, Program]:
    """Return the programs as the file's function returns them.

    Raises InputError, in one sentence that names the file, for what is no program.
    """
    path = job.parallelism.strategy
    if not path:
        return made
    rewrite = function(path, "the strategy")
    return {kind: _whole(rewrite(kind, list(of)), kind, path) for kind, of in made.items()}


def _whole(found: object, kind: str, path: str) -> Program:
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        raise InputError(
            f"{path} returns {str(found)[:80]!r} for {kind}; a program is a list of at least one "
            "Kernel or Collective"
        )
    for i, item in enumerate(found):
        if not isinstance(item, Kernel | Collective):
            raise InputError(
                f"{path} returns {str(item)[:80]!r} at position {i} of {kind}; an item is a "
                "Kernel or a Collective of sim.builder.program"
            )
        if isinstance(item, Collective) and item.axis not in AXES:
            raise InputError(
                f"{path}: {item.name} of {kind} is over the axis {item.axis!r}; there are "
                f"{', '.join(AXES)}"
            )
        if wrong := fault(item):
            raise InputError(f"{path}: position {i} of {kind} has {wrong}")
        if late := [need for need in item.needs if need not in range(i)]:
            raise InputError(
                f"{path}: {item.name}, position {i} of {kind}, needs position {late[0]}, which "
                "does not come before it"
            )
    return found
