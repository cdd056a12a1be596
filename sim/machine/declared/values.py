"""The kinds of values in a topology file: numbers in bounds, text with a unit, words."""

from __future__ import annotations

import re
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import Discriminator, Field, Tag
from pydantic_core import PydanticCustomError, core_schema

from sim import units
from sim.keys.refusals import WANTED
from sim.keys.section import unit
from sim.machine.fabric_kinds import SHAPE

EXAMPLES = {"FLOP/s": "989 TFLOP/s", "B/s": "450 GB/s", "B": "80 GiB", "s": "1.5 us", "W": "700 W"}
"""By unit: how a file writes a value of it."""
TABLE, VALUE = "{table}", "{value}"
"""What pydantic calls the two forms of a value that may be a table by size."""


class Quantity(NamedTuple):
    """Text with a unit, read as a number of SI units within bounds."""

    unit: str
    low: float
    high: float

    def read(self, value: object) -> float:
        """Return the number; refuse what is none, or out of bounds."""
        try:
            number = units.parse(value, self.unit) if isinstance(value, str) else -1.0
        except ValueError:
            number = -1.0
        if not self.low <= number <= self.high:
            least = f"above 0 (from {self.low:g})" if self.low else "of at least 0"
            raise PydanticCustomError(
                WANTED,
                f"a number {least} and at most {self.high:g} of {self.unit}, as text such as "
                f'"{EXAMPLES[self.unit]}"',
            )
        return number

    def __get_pydantic_core_schema__(self, *_: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, *_: Any) -> dict[str, Any]:
        said = {"type": "string", "pattern": units.pattern(self.unit)}
        return said | {"examples": [EXAMPLES[self.unit]], "unit": self.unit}


class Pattern(NamedTuple):
    """Text of a certain form, and that form in words."""

    pattern: str
    wanted: str

    def read(self, value: object) -> str:
        """Return the text as it is; refuse other text, and what is none."""
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise PydanticCustomError(WANTED, self.wanted)
        return value

    def __get_pydantic_core_schema__(self, *_: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, *_: Any) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{self.pattern}$"}


Text = Annotated[str, Field(min_length=1)]
Word = Annotated[
    str,
    Pattern(
        "[a-z][a-z0-9_]{0,19}",
        "a word of small letters, digits and _, 20 at most, that begins with a letter",
    ),
]
Shape = Annotated[str, Pattern(SHAPE, "the nodes along each dimension, such as '4x4x8'")]

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Sms = Annotated[int, Field(ge=0), unit("SMs")]
Share = Annotated[float, Field(ge=1e-6, le=1)]
Part = Annotated[float, Field(ge=0, le=1)]
Ratio = Annotated[float, Field(ge=1, le=1e6)]
Amount = Annotated[float, Field(ge=0, le=1e6)]
Exponent = Annotated[float, Field(ge=1, le=10)]
Weight = Annotated[float, Field(ge=0, le=10)]
Factor = Annotated[float, Field(ge=1e-6, le=1e24)]

Flops = Annotated[float, Quantity("FLOP/s", 1e6, 1e21)]
Bandwidth = Annotated[float, Quantity("B/s", 1e3, 1e18)]
Bytes = Annotated[float, Quantity("B", 1e6, 1e18)]
Delay = Annotated[float, Quantity("s", 0.0, 1e3)]
Window = Annotated[float, Quantity("s", 1e-6, 1e3)]
Watts = Annotated[float, Quantity("W", 1.0, 1e5)]
Dollars = Annotated[float, Field(gt=0, le=1e6), unit("USD")]

T = TypeVar("T")
_Size = Annotated[str, Pattern("[1-9][0-9]{0,5}", "a head dimension, or a number of GPUs per node")]


ONLY: dict[str, Any] = {"additionalProperties": False}
"""What a JSON schema says of a table whose keys are of one pattern."""


def _form(value: object) -> str:
    return TABLE if isinstance(value, dict) else VALUE


def _either(schema: dict[str, Any]) -> None:
    schema["anyOf"] = schema.pop("oneOf")


BySize = Annotated[
    Annotated[T, Tag(VALUE)]
    | Annotated[dict[_Size, T], Field(min_length=1, json_schema_extra=ONLY), Tag(TABLE)],
    Field(discriminator=Discriminator(_form), json_schema_extra=_either),
]
"""One value, or a table of them by head dimension or by the GPUs that a group has in a node."""
