"""Imports go one way: between packages, and inside ``sim``; the command line starts light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "schedules": set(),
    "topologies": {"schedules"},
    "sim": {"schedules", "topologies"},
    "traces": {"sim", "schedules", "topologies"},
    "validation": {"traces", "sim", "schedules", "topologies"},
}
ORDER = (
    "units html graph timeline untimed longest mesh locks files "
    "topology fabric cluster collectives symmetry network "
    "hardware kernels engine "
    "resnet routing precision model recomputation families mixtures presets operators blocks "
    "context attention mla mlp experts convolution quantise mtp layer scratch program template "
    "writer strategies activations stage job groups pieces outside resident programs build "
    "host fold price latencies stage_times analysis whatif plots report schedule_run forward_run "
    "sections recipe refusals translate legality order_file "
    "config replicas perturbations decisions summary runs compare sweep check balance"
)
FRONT_DOOR = {"sim", "sim.cli", "sim.commands"}  # may import from everywhere
HEAVY = {"numpy", "matplotlib", "pandas", "networkx", "simpy", "scipy"}


def modules() -> dict[str, Path]:
    """Every module of the packages, by its dotted name."""
    out = {}
    for package in MAY_IMPORT:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            out[name.removesuffix(".__init__")] = path
    return out


MODULES = modules()


def is_typing_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below, at any depth, but for what only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if is_typing_only(child):
            for other in child.orelse:  # type: ignore[attr-defined]
                yield other
                yield from walk(other)
        else:
            yield child
            yield from walk(child)


def imported(text: str, package: str) -> set[str]:
    """The modules that a file imports, wherever in it; names of submodules in full."""
    out = set()
    for node in walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [node.module])])
            found = {f"{base}.{alias.name}" for alias in node.names} & MODULES.keys()
            out |= found or {base}
    return out


def imports_of(name: str, path: Path) -> set[str]:
    return imported(
        path.read_text(), name if path.name == "__init__.py" else name.rpartition(".")[0]
    )


@cache
def edges() -> list[tuple[str, str]]:
    """Who imports whom, from the text of every module; read when a test first asks."""
    return sorted(
        (name, other) for name, path in MODULES.items() for other in imports_of(name, path)
    )


def is_front_door(name: str) -> bool:
    return name in FRONT_DOOR or name.startswith("sim.commands.")


def test_the_reader_of_imports_reads_every_form() -> None:
    text = """
import numpy as np, sim.graph
from sim import cluster, config
from sim.mesh import Mesh
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from sim import runs
def late():
    from sim.engine import simulate
    from .collectives import ring
"""
    assert imported(text, "sim") == {
        "numpy", "sim.graph", "sim.cluster", "sim.config", "sim.mesh", "typing", "sim.engine",
        "sim.collectives.ring",
    }  # fmt: skip


def test_packages_import_one_way() -> None:
    wrong = [
        (a, b)
        for a, b in edges()
        for mine, other in [(a.split(".")[0], b.split(".")[0])]
        if other in MAY_IMPORT and other != mine and other not in MAY_IMPORT[mine]
        if not is_front_door(a)
    ]
    assert wrong == []


def test_modules_of_sim_import_only_those_before_them() -> None:
    """``ORDER`` is the whole order; a package counts as one, and has no circles inside."""
    place = {name: i for i, name in enumerate(ORDER.split())}
    units = {name.split(".")[1] for name in MODULES if name.startswith("sim.")}
    assert units - {"cli", "commands"} == place.keys()
    wrong = []
    for a, b in edges():
        if not a.startswith("sim.") or not b.startswith("sim.") or is_front_door(a):
            continue
        mine, other = a.split(".")[1], b.split(".")[1]
        if is_front_door(b) or (mine != other and place[other] > place[mine]):
            wrong.append((a, b))
    assert wrong == []


def test_no_module_needs_itself() -> None:
    within = nx.DiGraph((a, b) for a, b in edges() if b in MODULES and a != "sim" and b != "sim")
    packages = [(a, b) for a, b in within.edges if a.startswith(f"{b}.")]  # a package's own face
    within.remove_edges_from(packages)
    assert list(nx.simple_cycles(within)) == []


def test_only_the_recorder_imports_torch() -> None:
    users = {a for a, b in edges() if b.split(".")[0] == "torch"}
    assert {name for name in users if not name.startswith("traces.record")} == set()


@pytest.mark.slow
@pytest.mark.parametrize("module", ["sim", "sim.cli", "sim.config"])
def test_reading_a_recipe_loads_nothing_heavy(module: str) -> None:
    """Neither the command line nor the recipe waits for arrays, pictures or the engine to load."""
    code = f"import sys, {module}; print(*{HEAVY!r} & sys.modules.keys())"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == []
