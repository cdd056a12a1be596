"""What each key of a recipe means, as the text below it says: for the schema and starter recipes.

pydantic could keep these texts itself (``use_attribute_docstrings``), but would read the source of
every section whenever a recipe is loaded.
"""

from __future__ import annotations

import ast
import inspect
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
    (of,) = ast.parse(inspect.getsource(section)).body
    out = {}
    for key, text in pairwise(of.body if isinstance(of, ast.ClassDef) else ()):
        match key, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=said)):
                out[name] = inspect.cleandoc(str(said))
    return out


def describe(schema: dict[str, Any]) -> None:
    """Put the texts into the JSON schema of recipes, among the sorted facts of each key."""
    for section in Section.__subclasses__():
        table = schema["$defs"].get(section.__name__, {})
        for key, text in descriptions(section).items() if table else ():
            facts = table["properties"][key] | {"description": text}
            table["properties"][key] = dict(sorted(facts.items()))
