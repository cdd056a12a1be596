"""Times and the like as a file writes them: text with a unit, which stays as it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic_core import PydanticCustomError, core_schema

from schedules.input_error import InputError
from sim import units
from sim.keys.refusals import WANTED


@dataclass(frozen=True, eq=False)
class Form:
    """What a value may be: a test, the same in words, and as a JSON schema."""

    fits: Callable[[Any], bool]
    wanted: str
    schema: dict[str, Any]

    def read(self, value: object) -> object:
        """Return the value as it is, lists as tuples; refuse what does not fit."""
        if self.fits(value):
            return tuple(value) if isinstance(value, list) else value
        raise PydanticCustomError(WANTED, self.wanted)

    def __get_pydantic_core_schema__(self, *_: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, *_: Any) -> dict[str, Any]:
        return self.schema


def _reads(read: Callable[[str], float], value: object) -> bool:
    try:
        return isinstance(value, str) and read(value) > 0.0
    except InputError:
        return False


def _is_time(value: object) -> bool:
    return _reads(units.duration, value)


def _is_rate(value: object) -> bool:
    return _reads(lambda text: units.parse(text, "B/s"), value)


def _is_mean(value: object) -> bool:
    return value == "never" or _is_time(value)


def _is_interval(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return 1 <= value <= 10**9
    return value in FORMULAS or _is_time(value)


def _are_factors(value: object) -> bool:
    def good(one: object) -> bool:
        return isinstance(one, int | float) and not isinstance(one, bool) and 1.0 <= one <= 1e3

    return isinstance(value, list | tuple) and 0 < len(value) <= 10_000 and all(map(good, value))


FORMULAS = ("best", "young", "daly")
_SUCH = 'a time above 0 with its unit (s, min, h or d), such as "10 min"'
_TEXT = {"type": "string", "examples": ["10 min"]}
_WORDS = [{"const": word} for word in FORMULAS]
_COUNT = {"type": "integer", "minimum": 1}
_FACTOR = {"type": "number", "minimum": 1, "maximum": 1e3}

Time = Annotated[str, Form(_is_time, _SUCH, _TEXT)]
Mean = Annotated[
    str, Form(_is_mean, f'{_SUCH}, or "never"', {"anyOf": [_TEXT, {"const": "never"}]})
]
"""A mean time between failures."""
Rate = Annotated[
    str,
    Form(_is_rate, 'text such as "100 GB/s"', {"type": "string", "examples": ["100 GB/s"]}),
]
Interval = Annotated[
    int | str,
    Form(
        _is_interval,
        'a number of steps, a time such as "10 min", or "best", "young" or "daly"',
        {"anyOf": [_COUNT, _TEXT, *_WORDS]},
    ),
]
"""An interval between checkpoints."""
Factors = Annotated[
    tuple[float, ...],
    Form(_are_factors, "a list of numbers from 1 to 1000", {"type": "array", "items": _FACTOR}),
]
