"""A table of a topology file; any of them may say where its values come from."""

from typing import Annotated

from pydantic import Field
from pydantic_core import PydanticCustomError

from sim.keys.section import Section
from sim.machine.declared.values import Text

LACKS, RELATED = "lacks", "related"
"""Types of refusals: a key that is needed beside those given, values that do not fit each other."""


class Table(Section):
    """A table of the file, with its source."""

    source: Annotated[Text | None, Field(exclude=True)] = None
    """where the values come from"""


def lacks(key: str) -> PydanticCustomError:
    """Return the refusal of a table that needs this key."""
    return PydanticCustomError(LACKS, key)


def related(text: str) -> PydanticCustomError:
    """Return the refusal of a table whose values do not fit each other."""
    return PydanticCustomError(RELATED, text)
