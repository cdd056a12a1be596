"""What there is to choose from: names, each with one line about it."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import schedules
import topologies
from sim import presets, strategies

KINDS = ("models", "topologies", "schedules", "strategies")


def entries(kind: str) -> dict[str, str]:
    """Name and one line about each of the models, topologies, schedules or strategies.

    >>> sorted(entries("schedules"))
    ['gpipe', 'interleaved_1f1b', 'one_f_one_b']
    """
    match kind:
        case "models":
            return {name: _model(presets.preset(name)) for name in presets.names()}
        case "topologies":
            return {file.stem: _title(file) for file in _files(topologies.__file__, "*.toml")}
        case "schedules":
            return {file.stem: _sentence(file) for file in _files(schedules.__file__, "[a-z]*.py")}
        case "strategies":
            return {file.stem: _sentence(file) for file in _files(strategies.__file__, "[a-z]*.py")}
    raise ValueError(f"list {kind!r}: there are {', '.join(KINDS)}")


def _files(package: str | None, pattern: str) -> list[Path]:
    return sorted(Path(package or "").parent.glob(pattern))


def _model(numbers: dict[str, object]) -> str:
    words = "{layers} layers, hidden {hidden}, {heads} heads, vocabulary {vocab}"
    return words.format(**numbers)


def _title(file: Path) -> str:
    """The GPU of a topology, and what it builds on."""
    raw = tomllib.loads(file.read_text(encoding="utf-8"))
    gpu = raw.get("gpu", {}).get("name")
    return str(gpu) if gpu else f"as {raw.get('base')}, with changes"


def _sentence(file: Path) -> str:
    """The first line of a module's docstring; the module is not imported."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
