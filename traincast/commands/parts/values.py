"""Reads values that options take as text: ``0,4-7``, ``0.5:1.5``, ``F=5,I=4``; only in ASCII."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import islice

from schedules.input_error import InputError
from schedules.times import Seconds
from sim.recipe import recipe_file

TIMES = {"F": 1.0, "I": 1.0, "W": 1.0, "p2p": 0.0}
"""Default seconds of a stage's forward, input gradient and weight gradient, and of a transfer."""
SHORTEST, LONGEST = 1e-12, 1e12  # seconds

_RANGE = re.compile(r" *([0-9]{1,9}) *(?:- *([0-9]{1,9}) *)?")
_NUMBER = re.compile(r" *[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)? *| *\.[0-9]+([eE][+-]?[0-9]+)? *")


def ranks(text: str, gpus: int = 2**31) -> list[int]:
    """Return the ranks in a list of numbers and ranges, ends included, in a job of ``gpus`` GPUs.

    >>> ranks("0,4-6", 8)
    [0, 4, 5, 6]
    """
    out: set[int] = set()
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if not found:
            raise InputError(f"--ranks takes ranks such as 0,4-7, not {_brief(text)}")
        first = int(found[1])
        last = first if found[2] is None else int(found[2])
        if last < first:
            raise InputError(f"--ranks {first}-{last} runs backwards; {last}-{first} would do")
        if last >= gpus:
            raise InputError(f"--ranks: there is no rank {last}; the job has 0 to {gpus - 1}")
        out.update(range(first, last + 1))
    return sorted(out)


def simulated(ranks: Sequence[int] | None, there: Sequence[int]) -> None:
    """Raise InputError for a rank for which another rank is simulated."""
    missing = next((rank for rank in ranks or () if rank not in there), None)
    if missing is not None:
        some = ", ".join(map(str, islice(there, 8)))
        more = f", ... {there[-1]}" if len(there) > 8 else ""
        raise InputError(
            f"--ranks: rank {missing} is not simulated, since another rank stands for it; the "
            f"simulated ones are {some}{more}, or all with --set simulation.fold=none"
        )


def window(text: str) -> tuple[float, float]:
    """Return the two instants of ``FROM:TO``, in seconds.

    >>> window("0.5:1.5")
    (0.5, 1.5)
    """
    first, _, last = text.partition(":")
    begin, end = _seconds(first), _seconds(last)
    if not 0 <= begin < end < math.inf:
        raise InputError(
            "--window takes FROM:TO in seconds, FROM before TO, such as 0.5:1.5, "
            f"not {_brief(text)}"
        )
    return begin, end


def vary(texts: Sequence[str], option: str = "--vary") -> dict[str, list[object]]:
    """Return the values of each key that is varied; with another option KEY= leaves it out.

    >>> vary(["parallelism.tp=4,8", "training.recompute=full,none"])
    {'parallelism.tp': [4, 8], 'training.recompute': ['full', 'none']}
    """
    out: dict[str, list[object]] = {}
    for text in texts:
        key, equals, some = text.partition("=")
        if not equals or "." not in key or (not some and option == "--vary"):
            raise InputError(
                f"{option} takes KEY=V1,V2, such as parallelism.tp=4,8, not {_brief(text)}"
            )
        if key in out:
            raise InputError(f"{option} gives {key} twice; name all its values in one {option}")
        out[key] = [recipe_file.setting(f"{key}={value}")[1] for value in _values(some)]
    return out


def _values(text: str) -> list[str]:
    """Split at commas, but not at those in brackets or quotes.

    >>> _values("[4,4],[3,5]"), _values("4,8"), _values('"a,b",c')
    (['[4,4]', '[3,5]'], ['4', '8'], ['"a,b"', 'c'])
    """
    out, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            out.append("")
        else:
            out[-1] += letter
    return out


def times(text: str) -> dict[str, Seconds]:
    """Return the seconds per kind of step; the defaults are 1, 1, 1 and no time for transfers.

    F, I and W may be given stage by stage, and p2p boundary by boundary. Raises InputError for what
    is no such time.

    >>> times("F=5,I=4/4/6")
    {'F': 5.0, 'I': [4.0, 4.0, 6.0], 'W': 1.0, 'p2p': 0.0}
    """
    out, given = dict[str, Seconds](TIMES), set[str]()
    for part in filter(None, text.split(",")):
        key, _, value = (piece.strip() for piece in part.partition("="))
        seconds = [_seconds(one) for one in value.split("/")]
        if key not in (*TIMES, "FB") or not all(_is_time(key, one) for one in seconds):
            raise InputError(
                f"--times takes positive seconds such as F=5,I=4,W=3,p2p=0, or F=5/6/7 stage by "
                f"stage, from {SHORTEST:g} to {LONGEST:g}, not {_brief(part)}"
            )
        if key in given:
            raise InputError(f"--times gives {key} twice; leave one of them out")
        if len(seconds) > 1 and key == "FB":
            raise InputError(f"--times takes one number for {key}, not {_brief(part)}")
        given.add(key)
        out[key] = seconds[0] if len(seconds) == 1 else seconds
    return out


def staged(times: Mapping[str, Seconds], stages: int) -> None:
    """Raise InputError when a kind's times are not as many as the stages, or their boundaries."""
    for key, seconds in times.items():
        count, what = (stages - 1, "boundaries") if key == "p2p" else (stages, "stages")
        if isinstance(seconds, Sequence) and len(seconds) != count:
            raise InputError(
                f"--times gives {len(seconds)} numbers for {key}, but the pipeline has {count} "
                f"{what}; give one for all, or one for each"
            )


def _is_time(key: str, seconds: float) -> bool:
    return SHORTEST <= seconds <= LONGEST or (key == "p2p" and seconds == 0)


def _seconds(text: str) -> float:
    return float(text) if _NUMBER.fullmatch(text) else math.nan


def _brief(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
