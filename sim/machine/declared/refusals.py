"""What is wrong with a topology file, in one sentence for the person who wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from sim.keys.refusals import fault, nearest, show
from sim.machine.attention_tables import ADVICE
from sim.machine.declared.table import LACKS, RELATED
from sim.machine.declared.topology import Topology
from sim.machine.declared.values import TABLE, VALUE


def sentence(error: ValidationError, where: str) -> str:
    """Return the first thing that pydantic found wrong; a misspelt key before one that is missing.

    ``where`` says which topology it is.
    """
    problems = error.errors(include_url=False)
    problem = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    parts = [str(part) for part in problem["loc"] if part not in (TABLE, VALUE)]
    name, kind, said = ".".join(parts), problem["type"], problem["msg"]
    if parts[-1:] == ["[key]"]:
        return f"{where}: {'.'.join(parts[:-2])} has the key {show(parts[-2])}; it must be {said}"
    match kind:
        case "missing":
            return f"{where} lacks {name}; {ADVICE}"
        case _ if kind == LACKS:
            return f"{where} lacks {name}.{said}; {ADVICE}"
        case _ if kind == RELATED:
            return f"{where}: {name}.{said}"
        case "extra_forbidden":
            return f"{where}: unknown key {name}; {_hint(parts)}"
        case _:
            return f"{where}: {fault(problem, name)}"


def _hint(parts: Sequence[str]) -> str:
    """Return the key that was probably meant, or all that stand in its place."""
    known = [field.alias or key for key, field in _table(parts[:-1]).model_fields.items()]
    known.append(known.pop(0))  # the source, which every table may have
    near = nearest(parts[-1], known, 0.6)
    return (
        f"did you mean {'.'.join([*parts[:-1], near])}?" if near else f"it has {', '.join(known)}"
    )


def _table(parts: Sequence[str]) -> type[BaseModel]:
    """Return the table that stands at these keys."""
    at: Any = Topology
    for part in parts:
        fields = {field.alias or key: field for key, field in at.model_fields.items()}
        at = _found(fields[part].annotation) if part in fields else at
    return at  # type: ignore[no-any-return]


def _found(annotation: Any) -> Any:
    """Return the table in an annotation; of a table of tables, one of these."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for one in get_args(annotation) if (found := _found(one))), None)
