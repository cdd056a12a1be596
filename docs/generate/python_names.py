"""The public names of ``import traincast as tc``, each with its signature and one sentence."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import traincast


def of() -> dict[str, Callable[[], str]]:
    """Return a maker of Markdown for the functions, the modules and the classes."""
    kinds: dict[str, Callable[[object], bool]] = {
        "functions": inspect.isfunction,
        "modules": inspect.ismodule,
        "classes": inspect.isclass,
    }
    return {name: partial(text, is_one) for name, is_one in kinds.items()}


def text(is_one: Callable[[object], bool]) -> str:
    """Return a line for each public name of a kind, in the order in which a job is done."""
    names = {name: getattr(traincast, name) for name in traincast._FROM}
    return "\n".join(line(name, found) for name, found in names.items() if is_one(found))


def line(name: str, found: Any) -> str:
    """Return how a name is called, and the first sentence of its docstring."""
    called = f"{name}{signature(found)}" if inspect.isfunction(found) else name
    return f"- **`tc.{called}`**: {sentence(found)}"


def signature(function: Any) -> str:
    """Return the parameters with their types; a default that is a function is left out.

    >>> signature(lambda a, b=1, *, c=print: 0)
    '(a, b = 1, *, c = ...)'
    """
    given = inspect.signature(function)
    said = []
    for one in given.parameters.values():
        if one.kind is one.KEYWORD_ONLY and "*" not in said:
            said.append("*")
        said.append(f"{one.name}{_annotated(': ', one.annotation)}{_default(one)}")
    return f"({', '.join(said)}){_annotated(' -> ', given.return_annotation)}"


def _annotated(before: str, annotation: object) -> str:
    return "" if annotation is inspect.Parameter.empty else f"{before}{annotation}"


def _default(of: inspect.Parameter) -> str:
    value = of.default
    if value is of.empty or callable(value):
        return "" if value is of.empty else " = ..."
    made = isinstance(value, tuple | Path) and value == type(value)()
    return f" = {of.annotation}()" if made else f" = {value!r}"


def sentence(found: Any) -> str:
    """Return the first sentence of a docstring as Markdown.

    >>> sentence(lambda: 0), sentence(line)
    ('.', 'Return how a name is called, and the first sentence of its docstring.')
    """
    first = " ".join((inspect.getdoc(found) or "").partition("\n\n")[0].split())
    plain = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", first).replace("``", "`")
    return f"{re.split(r'[.] (?=[A-Z`])', plain)[0].rstrip('.')}."
