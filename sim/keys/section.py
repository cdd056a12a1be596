"""A table of a file with checked keys, which a recipe or a topology is made of."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


def unit(name: str) -> Any:
    """Return what says the unit of a value in the JSON schema and in the page made of it."""
    return Field(json_schema_extra={"unit": name})


class Section(BaseModel):
    """A table of the file, which refuses unknown keys and values of another type."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True
    )
