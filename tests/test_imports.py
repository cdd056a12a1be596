"""Imports go one way: between packages, and inside ``sim``; the command line starts light."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path

import networkx as nx
import pytest

from sim import strategies
from sim.recipe.recipe import Recipe

ROOT = Path(__file__).parents[1]
PACKAGES = ("schedules", "topologies", "sim", "traces", "validation", "traincast")
"""Each may import those before it."""

FLOORS = (
    "html units files late keys strategies",
    "graph table",
    "timeline model machine",
    "recipe engine analysis",
    "declarations",
    "builder",
    "rewrites",
    "memory whatif perturbations",
    "runs plots",
    "goodput",
    "search",
    "report",
)
"""The wings of ``sim``: each may import those of earlier lines. The registry of features is below
all, their declarations are above recipes, and their rewrites above what builds steps."""

HEAVY = {"numpy", "matplotlib", "pandas", "networkx", "simpy", "scipy", "numba"}
LATE = {"rich", "pandas", "pyarrow", "networkx", "matplotlib", "scipy", "torch", "numba", "joblib"}


def modules() -> dict[str, Path]:
    """Every module of the packages, by its dotted name."""
    out = {}
    for package in PACKAGES:
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


def test_the_reader_of_imports_reads_every_form() -> None:
    text = """
import numpy as np, sim.graph
from sim.machine import cluster, network
from sim.builder.mesh import Mesh
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from sim.runs import run
def late():
    from sim.engine import simulate
    from .machine.collectives import ring
"""
    assert imported(text, "sim") == {
        "numpy", "sim.graph", "sim.machine.cluster", "sim.machine.network", "sim.builder.mesh",
        "typing", "sim.engine", "sim.machine.collectives.ring",
    }  # fmt: skip


def test_packages_import_one_way() -> None:
    place = {name: i for i, name in enumerate(PACKAGES)}
    between = ((a, b, a.split(".")[0], b.split(".")[0]) for a, b in edges())
    assert [(a, b) for a, b, mine, other in between if place.get(other, -1) > place[mine]] == []


def wing(name: str) -> str:
    """The wing of a module; files of a feature that its declaration needs are declarations too."""
    if not name.startswith("sim.strategies."):
        return name.split(".")[1]
    feature = ".".join(name.split(".")[:3])
    declared = {f"{feature}.declare", *reached(f"{feature}.declare", feature)}
    return "declarations" if name in {feature, *declared} else "rewrites"


def reached(name: str, inside: str) -> set[str]:
    """The modules of a package that a module imports, directly or not."""
    graph = nx.DiGraph(edges())
    below = nx.descendants(graph, name) if name in graph else set()
    return {other for other in below if other.startswith(f"{inside}.")}


def test_nothing_but_the_registry_imports_a_feature() -> None:
    """And the registry does so by name; a feature may import another one's declaration."""
    features = [(a, b) for a, b in edges() if b.startswith("sim.strategies.")]
    assert [
        (a, b)
        for a, b in features
        if not a.startswith("sim.strategies.")
        or (a.split(".")[2] != b.split(".")[2] and not b.endswith(".declare"))
    ] == []


def test_only_a_feature_reads_its_keys() -> None:
    """No module outside names a key that a feature declares as an attribute of a section."""
    own = {key for of in strategies.declared("KEYS") for keys in of.values()
           for key in keys.model_fields}  # fmt: skip
    read = [
        (name, node.attr)
        for name, path in MODULES.items()
        if name.startswith("sim.") and not name.startswith("sim.strategies.")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in own and is_section(node.value)
    ]
    assert read == []


def test_every_key_that_a_feature_declares_is_a_key_of_its_section() -> None:
    """A section that takes none would leave them out, and of two of one name one would be lost."""
    declared = [(name, keys) for of in strategies.declared("KEYS") for name, keys in of.items()]
    for name, keys in declared:
        assert issubclass(Recipe.model_fields[name].annotation, keys), keys  # type: ignore[arg-type]
    named = [(name, key) for name, keys in declared for key in keys.model_fields]
    assert len(named) == len(set(named))


def is_section(node: ast.expr) -> bool:
    return ast.unparse(node).split(".")[-1] in {"training", "parallelism", "model", "schedule", "p"}


def test_a_feature_has_only_hooks_that_are_called() -> None:
    """A misspelt hook would never run."""
    for name, (part, known) in product(
        strategies.names(), {"rewrite": strategies.HOOKS, "model": strategies.MODEL}.items()
    ):
        if f"sim.strategies.{name}.{part}" not in MODULES:
            continue
        module = import_module(f"sim.strategies.{name}.{part}")
        own = {n for n, f in vars(module).items()
               if inspect.isfunction(f) and f.__module__ == module.__name__}  # fmt: skip
        assert {n for n in own if not n.startswith("_")} <= known.keys()


def test_wings_import_only_those_below() -> None:
    floor = {name: i for i, names in enumerate(FLOORS) for name in names.split()}
    assert {wing(name) for name in MODULES if name.startswith("sim.")} == floor.keys()
    inside = [
        (a, b, wing(a), wing(b))
        for a, b in edges()
        if a.startswith("sim.") and b.startswith("sim.")
    ]
    assert [
        (a, b) for a, b, mine, other in inside if mine != other and floor[other] >= floor[mine]
    ] == []


def test_no_module_needs_itself() -> None:
    within = nx.DiGraph((a, b) for a, b in edges() if b in MODULES and a != "sim" and b != "sim")
    packages = [(a, b) for a, b in within.edges if a.startswith(f"{b}.")]  # a package's own face
    within.remove_edges_from(packages)
    assert list(nx.simple_cycles(within)) == []


def test_only_the_recorder_imports_torch() -> None:
    users = {a for a, b in edges() if b.split(".")[0] == "torch"}
    assert {name for name in users if not name.startswith("traces.record")} == set()


def python(code: str) -> str:
    """What a fresh process prints on standard error."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stderr


def test_only_the_compiled_engine_imports_numba() -> None:
    inside = {name for name in MODULES if name.startswith("sim.engine.compiled")}
    assert {a for a, b in edges() if b.split(".")[0] == "numba"} <= inside
    assert {a for a, b in edges() if b in inside} - inside == {"sim.engine.loop"}


@pytest.mark.slow
@pytest.mark.parametrize("module", ["sim, traincast.main", "sim.recipe.recipe_file"])
def test_reading_a_recipe_loads_nothing_heavy(module: str) -> None:
    """Neither the command line nor the recipe waits for arrays, pictures or the engine to load."""
    code = f"import sys, {module}; print({HEAVY!r} & sys.modules.keys(), file=sys.stderr)"
    assert python(code) == "set()\n"


@pytest.mark.slow
def test_a_command_loads_no_library_that_it_does_not_need() -> None:
    """All in one process, the lightest first: what has been loaded after each."""
    recipe = "validation/recipes/korthikanti_22b_full.toml"
    calls = [["check", recipe, "--json"], ["run", recipe, "--json"], ["list", "models"], ["--help"]]
    code = f"""
import sys
from contextlib import suppress
from traincast.main import main
for call in {calls!r}:
    with suppress(SystemExit):
        main(call)
    print(call[0], *sorted({LATE!r} & sys.modules.keys()), file=sys.stderr)
"""
    assert python(code) == "check\nrun\nlist rich\n--help rich\n"
