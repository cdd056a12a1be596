"""Analyses of a timeline: shares of time, causes of idling, the critical path, traffic and others.

Each file answers one question about a :class:`sim.timeline.Timeline` (or its graph) and returns
data. Nothing here prints or draws, and nothing loops over all ops.

An *analysis* is a file that defines a function of its own name whose first parameter is called
``timeline``. It is found by that name: ``traincast list analyses`` prints the first sentence of the
function's docstring, and ``--analysis NAME`` shows what the function returns. Its parameters
without a default say what else it needs: ``machine``, ``cluster``, ``job`` or ``recipe``, which a
simulated run has. It returns a DataFrame, or numbers, mappings and arrays in a dict, a list or a
dataclass. To add an analysis is to add a file; a file elsewhere is named by its path. The other
files here help analyses, and the docstring of each begins with that.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from schedules.input_error import InputError
from schedules.user_code import function as outside
from schedules.user_code import is_path
from sim.html import table

RUN = ("machine", "cluster", "job", "recipe")
"""What an analysis may take besides the timeline; a simulated run has all of it."""
_FIRST = "the first parameter of {} must be timeline"


@dataclass(frozen=True)
class Analysis:
    """A question about a timeline, found by its name; call it to get the answer."""

    name: str
    about: str
    """The first sentence of the function's docstring."""
    needs: tuple[str, ...]
    """What it needs: ``timeline`` first, then its other parameters without a default."""
    function: Callable[..., Any]

    def __call__(self, of: Any, **options: Any) -> Any:
        """Analyse a run's result, a recording, a replay, or a bare timeline.

        ``options`` are other parameters of the function. Raises InputError where it needs something
        that ``of`` does not have, such as the machine of a recording, or that no run has.
        """
        self.check(options)
        given = {need: getattr(of, need, None) for need in self.needs[1:]} | options
        for need in self.needs[1:]:
            if given[need] is None:
                raise InputError(
                    f"{self.name} needs the {need} of a simulated run, which a recording does not "
                    "have; simulate a recipe with traincast run, or read its whole timeline.json.gz"
                )
        return self.function(getattr(of, "timeline", of), **given)

    def check(self, given: Container[str] = ()) -> None:
        """Raise InputError where it needs something that no run has and that is not ``given``."""
        for need in self.needs[1:]:
            if need not in RUN and need not in given:
                raise InputError(
                    f"{self.name} has a parameter {need} without a default; besides timeline, an "
                    f"analysis takes {', '.join(RUN[:-1])} or {RUN[-1]}"
                )


class Analyses(dict[str, Analysis]):
    """The analyses by name, or by the path of a file; a notebook shows what each one says."""

    def __missing__(self, name: str) -> Analysis:
        """Load a file such as ``./mine.py``; raise InputError, with similar names, for others.

        Of a file that is in the folder and is no analysis, the message says why.
        """
        if is_path(name):
            return _outside(name)
        if name in _files() and inspect.isfunction(_own(name)):
            raise InputError(f"sim/analysis/{name}.py is no analysis: {_FIRST.format(name)}")
        near = difflib.get_close_matches(name[:100], self, 3)
        hint = f"did you mean {' or '.join(near)}? There" if near else "there"
        raise InputError(
            f"no analysis {name[:100]!r}; {hint} are {', '.join(self)}, "
            "or a file of your own, ./NAME.py"
        )

    def __repr__(self) -> str:
        """Return the names in one line."""
        return f"Analyses: {', '.join(self)}"

    def _repr_html_(self) -> str:
        """Return a table of all analyses for a notebook."""
        rows = [(of.name, ", ".join(of.needs), of.about) for of in self.values()]
        return table("Analyses", rows, ("name", "takes", "says"), most=len(rows))


def analyses() -> Analyses:
    """Find every analysis: each is a file of ``sim/analysis`` with a function of its name.

    A file elsewhere can be asked for by its path: ``analyses()["./mine.py"]``. Any other name
    raises InputError, which lists similar names.
    """
    found = Analyses()
    for name in _files():
        if _is_one(function := _own(name)):
            found[name] = _analysis(name, function)
    return found


def _files() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def _own(name: str) -> Any:
    """Return what a file of this folder defines under the file's name, or None."""
    return getattr(importlib.import_module(f"{__name__}.{name}"), name, None)


def _outside(path: str) -> Analysis:
    function = outside(path, "the analysis")
    if not _is_one(function):
        raise InputError(f"{path}: {_FIRST.format(function.__name__)}")
    return _analysis(function.__name__, function)


def _is_one(of: object) -> bool:
    return inspect.isfunction(of) and next(iter(inspect.signature(of).parameters), "") == "timeline"


def _analysis(name: str, function: Callable[..., Any]) -> Analysis:
    takes = inspect.signature(function).parameters.values()
    text = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
    needs = [one.name for one in takes if one.default is one.empty]
    return Analysis(name, f"{text.partition('. ')[0].rstrip('.')}.", tuple(needs), function)
