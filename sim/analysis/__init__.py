"""What a timeline says: shares of time, causes of idling, the critical path, memory, traffic.

Each file answers one question about a :class:`sim.timeline.Timeline` (or its graph) and returns
data. Nothing here prints or draws, and nothing loops over all ops.

An *analysis* is a file that defines a function of its own name whose first parameter is called
``timeline``. It is found by that name: ``traincast list analyses`` says the first sentence of the
function's docstring, ``--analysis NAME`` shows what it returns. What else the function needs it
says by the names of parameters without a default: ``machine``, ``cluster``, ``job`` or ``recipe``,
which a simulated run has. It returns a DataFrame, or numbers, mappings and arrays in a dict, a list
or a dataclass. Adding one is adding a file; in place of a name stands the path of a file elsewhere.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from schedules.input_error import InputError
from schedules.user_code import function as outside
from schedules.user_code import is_path
from sim.html import table


@dataclass(frozen=True)
class Analysis:
    """A question about a timeline, found by its name; call it to have the answer."""

    name: str
    about: str
    """The first sentence of the function's docstring."""
    needs: tuple[str, ...]
    """What it takes: ``timeline`` first, then what else it cannot do without."""
    function: Callable[..., Any]

    def __call__(self, of: Any, **options: Any) -> Any:
        """Analyse a run's result, a recording, a replay, or a bare timeline.

        ``options`` are other parameters of the function. Raises InputError where it needs what
        ``of`` has not, such as the machine of a recording.
        """
        given = {need: getattr(of, need, None) for need in self.needs[1:]} | options
        for need in self.needs[1:]:
            if given[need] is None:
                raise InputError(
                    f"{self.name} needs the {need} of a simulated run, which a recording has not; "
                    "simulate a recipe with traincast run, or read its whole timeline.json.gz"
                )
        return self.function(getattr(of, "timeline", of), **given)


class Analyses(dict[str, Analysis]):
    """The analyses by name, or by the path of a file; a notebook shows what each says."""

    def __missing__(self, name: str) -> Analysis:
        """Run a file such as ``./mine.py``, and refuse what names neither, with what is near."""
        if is_path(name):
            return _outside(name)
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
        """Return a table of all."""
        rows = [(of.name, ", ".join(of.needs), of.about) for of in self.values()]
        return table("Analyses", rows, ("name", "takes", "says"), most=len(rows))


def analyses() -> Analyses:
    """Find every analysis: each is a file of ``sim/analysis`` with a function of its name.

    One may also ask for a file elsewhere: ``analyses()["./mine.py"]``. What names none raises
    InputError, which says what is near.
    """
    found = Analyses()
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        function = getattr(importlib.import_module(f"{__name__}.{name}"), name, None)
        if function and _is_one(function):
            found[name] = _analysis(name, function)
    return found


def _outside(path: str) -> Analysis:
    function = outside(path, "the analysis")
    if not _is_one(function):
        raise InputError(f"{path}: the first parameter of {function.__name__} must be timeline")
    return _analysis(function.__name__, function)


def _is_one(of: object) -> bool:
    return inspect.isfunction(of) and next(iter(inspect.signature(of).parameters), "") == "timeline"


def _analysis(name: str, function: Callable[..., Any]) -> Analysis:
    takes = inspect.signature(function).parameters.values()
    text = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
    needs = [one.name for one in takes if one.default is one.empty]
    return Analysis(name, f"{text.partition('. ')[0].rstrip('.')}.", tuple(needs), function)
