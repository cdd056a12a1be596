"""Features: what a job may use besides its plain split. Each has a folder here, found by name.

``declare.py`` says what a recipe may ask of a feature. It has some of: ``AFTER`` (features whose
turn comes before), ``KEYS`` (a :class:`~sim.recipe.sections.Section` with its keys, by section),
``check(recipe)`` (raises InputError where it does not go with the other keys), ``dtypes(recipe)``
(number formats that it multiplies in, by key), ``megatron(flags)`` and ``torchtitan(titan)`` (its
keys in those programs' words, by section), ``NEEDS`` (by switch that goes off with what it needs,
the key of that, and the values without it), ``EITHER`` (pairs of keys of which a recipe's own
second replaces a translated first), ``complete(recipe)`` (what a recipe left out, by section),
``native(parallelism)`` (whether PyTorch runs the model, not Megatron-LM), ``LISTS`` (an example,
by key that is a list of names), ``TRIED`` (the values that a search tries, by key), and
``CATALOGUE`` (name and meaning, by key).

``rewrite.py`` says what a feature does to a job, in functions with the names of :data:`HOOKS`, and
``model.py`` what it adds to a model, in those of :data:`MODEL`. Either may be missing. The programs
of a stage are kept for other jobs, so the hooks ``share``, ``edges``, ``blocks``, ``beside`` and
``programs`` get a job without a pipeline (:meth:`sim.builder.job.Job.of_stage`).
A rule between two features stands with the one that came later. Nothing but this registry imports
a feature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

HOOKS = {
    "data": "(data): how replicas agree, changed",
    "steps": "(job, steps): the steps of a pipeline in columns, changed",
    "share": "(part, job, cp_rank, ep_rank): what a rank computes, changed",
    "edges": "(job): collectives by kind of edge",
    "group": "(job, axis, lane, q): the ranks of a group on an axis of its own, or None",
    "twin": "(job, axis, at): the first coordinate along an axis that has the same programs",
    "cuts": "(job, stride): the numbers of lanes at which groups end that are no whole axis",
    "blocks": "(job, part, blocks, last): the blocks of operators of a stage, changed",
    "beside": "(job): whether collectives of the backward run beside weight-gradient GEMMs",
    "boundary": "(job, size): bytes of a message to the next stage, changed",
    "programs": "(job, programs, blocks, last): the programs of a stage, changed",
    "on_rank": "(job, programs): those programs on the ranks of a whole job, changed",
    "step": "(job, items, at): the program of one step of a stage, changed; see programs.StepPlace",
    "received": "(job, items, kind): a step whose input another pipeline rank has sent, changed",
    "sent": "(job, items, kind): a step whose output another pipeline rank receives, changed",
    "in_part": "(job, stages): gradients that ranks sum after the last backward: name, axis, bytes",
    "reduced": "(items, data): a tail in which gradients have been reduced, changed",
    "on_gpu": "(training): the share of the parameters that the GPU updates",
    "updates": "(share, data, norm, at): ops at the end of an update, after the norm's position",
    "narrow": "(job, stages): the number of parameters that are kept in one byte",
    "gathered_less": "(training): bytes by which a gathered element of a layer's matrix is less",
    "persistent": "(job, stages): bytes by category that a rank holds throughout, added up",
    "on_host": "(job, stages): bytes by category that the host holds for a rank, added up",
    "rerun": "(job): FLOPs of forwards that run again in one step",
    "alone": "(job): the job whose stages are timed by themselves",
}
"""What a feature may do to a job: the arguments of each function, and what it returns."""
MODEL = {
    "further": "(model): for each layer that it adds after the last one, the parts that precede it",
    "flops": "(model, batch, sequence, head): forward FLOPs beside those of layers and one head",
}
"""What a feature may add to a model, on its last stage."""


@cache
def names() -> tuple[str, ...]:
    """Return the names of all features, each after those that its declaration names."""
    folders = sorted(path.parent.name for path in Path(__file__).parent.glob("*/declare.py"))
    before = {name: getattr(_module(name, "declare"), "AFTER", ()) for name in folders}
    return tuple(TopologicalSorter(before).static_order())


def declared(what: str) -> Iterator[Any]:
    """Yield this part of the declaration of each feature that has it, in the features' order."""
    modules = (_module(name, "declare") for name in names())
    return (getattr(of, what) for of in modules if hasattr(of, what))


@cache
def hooks(name: str) -> tuple[Callable[..., Any], ...]:
    """Return this function of each feature that has it, in the features' order."""
    assert name in HOOKS | MODEL, name
    part = "model" if name in MODEL else "rewrite"
    able = [of for of in names() if (Path(__file__).parent / of / f"{part}.py").exists()]
    modules = (_module(feature, part) for feature in able)
    return tuple(getattr(of, name) for of in modules if hasattr(of, name))


def _module(name: str, part: str) -> ModuleType:
    return import_module(f"{__name__}.{name}.{part}")
