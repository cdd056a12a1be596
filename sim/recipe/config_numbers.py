"""A model's numbers from what a config.json states, by the tables of its family.

``of`` is a family (:mod:`sim.recipe.families`), ``stated`` what the file states, with its family's
defaults. Each function raises InputError, in the file's words, for what is not simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schedules.input_error import InputError
from sim.model.kinds import kind_of
from sim.recipe.families import ACTIVATION, MAY_BE_NULL
from sim.recipe.layer_lists import MOST_LAYERS, kinds, shortest, shown
from sim.recipe.mixtures import EXPERT_KEYS

Table = Mapping[str, Any]


def numbers(of: Table, stated: Table) -> dict[str, Any]:
    """Return all numbers that a file gives."""
    _check_only(of["only"], stated)
    found = _spelled(of["keys"], stated) | of["always"]
    for key, more in of["switches"].items():
        found |= more if stated[key] else {}
    found |= _mixers(of, stated, found["layers"])
    found = _with_feed_forward(of, stated, found)
    found["activation"] = _activation(stated, of["keys"]["activation"])
    return found


def windowed(of: Table) -> bool:
    """Return whether a family says which of its layers have a window."""
    return "window" in of.get("pattern", {})


def _check_only(only: Mapping[str, list[object]], stated: Table) -> None:
    """Raise InputError for a key that asks for what is not simulated."""
    for key, values in only.items():
        could = [_value(stated, v) if " / " in str(v) else v for v in values] or [None]
        if stated.get(key) is not None and stated[key] not in could:
            raise InputError(
                f"{key} = {shown(stated[key])} is not simulated; it must be {shown(could[-1])}"
            )


def _spelled(keys: Table, stated: Table) -> dict[str, Any]:
    """Return the numbers of some keys, without those that may be null and are."""
    found = {key: _value(stated, spelled) for key, spelled in keys.items()}
    for key, value in found.items():
        if value is None and keys[key] not in MAY_BE_NULL:
            raise InputError(f"{keys[key]} is null; give its value, or leave it out")
    return {key: value for key, value in found.items() if value is not None}


def _value(stated: Table, spelled: object) -> Any:
    """Return a constant, the value of a key, or the product or quotient of two."""
    if not isinstance(spelled, str):
        return spelled
    if " " not in spelled:
        return stated.get(spelled)
    first, sign, second = spelled.split(" ")
    one, other = stated.get(first), int(second) if second.isdigit() else stated.get(second)
    for key, value in ((first, one), (second, other)):
        if type(value) is not int or value < (key == second):
            raise InputError(f"{key} = {shown(value)} must be a whole number")
    assert isinstance(one, int)
    assert isinstance(other, int)
    if sign == "/" and one % other:
        raise InputError(f"{first} = {one} is not simulated; it must be a multiple of {second}")
    return one // other if sign == "/" else one * other


def _mixers(of: Table, stated: Table, layers: Any) -> dict[str, Any]:
    """Return what mixes tokens in each layer, if not all are full, and the sizes that it needs."""
    pattern, found = of.get("pattern"), [""]
    if pattern and not (windowed(of) and stated.get(pattern["window"]) is None):
        found = kinds(pattern, stated, layers) if _few(layers) else found
    needs = {kind_of(kind).needs for kind in found if kind not in ("", "none")} | {"mla"}
    sizes = {key: _table(table, stated) for key, table in of["tables"].items() if key in needs}
    if pattern and "window" in needs:
        sizes["window"] = stated[pattern["window"]]
    said = {"layers": len(found), "pattern": shortest(found)}
    return sizes | (said if {*found} - {"", "full"} else {})


def _table(keys: Table, stated: Table) -> dict[str, Any]:
    """Return a table of sizes without those that are null."""
    return _spelled({k: v for k, v in keys.items() if _value(stated, v) is not None}, stated)


def _with_feed_forward(of: Table, stated: Table, found: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers with what follows in each layer, without experts if no layer has them."""
    if not of.get("feed_forward") or not _few(found["layers"]):
        return found
    then = kinds(of["feed_forward"], stated, found["layers"])
    if "experts" not in then:
        found = {k: v for k, v in found.items() if k not in (*EXPERT_KEYS, "experts")}
    return found | ({"feed_forward": shortest(then)} if len({*then}) > 1 else {})


def _few(layers: object) -> bool:
    """Return whether layers are a number of which a list can be made; others are refused later."""
    return type(layers) is int and layers <= MOST_LAYERS


def _activation(stated: Table, key: str) -> str:
    found = stated[key]
    if not isinstance(found, str) or found not in ACTIVATION:
        known = ", ".join(ACTIVATION)
        raise InputError(f"{key} {shown(found)} is not simulated; there are {known}")
    return ACTIVATION[found]
