"""What each key of a recipe means, as the text below it says: for the schema and starter recipes.

pydantic could keep these texts itself (``use_attribute_docstrings``), but would read the source of
every section whenever a recipe is loaded.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from sim.keys.section import Section


def descriptions(section: type[BaseModel]) -> dict[str, str]:
    """Return the text of each key that has one.

    >>> from sim.recipe.recipe import ParallelismSection
    >>> descriptions(ParallelismSection)["tp"]
    'tensor parallel: number of GPUs that share each layer'
    """
    out = {}
    for part in (of for of in section.__mro__ if issubclass(of, Section)):
        (of,) = ast.parse(inspect.getsource(part)).body
        for key, text in pairwise(of.body if isinstance(of, ast.ClassDef) else ()):
            match key, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=said)),
                ):
                    out[name] = inspect.cleandoc(str(said))
    return out


def describe(schema: dict[str, Any]) -> None:
    """Put the texts into a JSON schema, among the sorted facts of each key."""
    tables = schema["$defs"] | {schema["title"]: schema}
    for section in _below(Section):
        table = tables.get(section.__name__, {})
        for key, text in descriptions(section).items() if table else ():
            name = section.model_fields[key].alias or key
            facts = table["properties"][name] | {"description": text}
            table["properties"][name] = dict(sorted(facts.items()))


def _below(section: type[Section]) -> Iterator[type[Section]]:
    """Yield all sections and tables, those with the keys of features last."""
    for one in section.__subclasses__():
        yield one
        yield from _below(one)
