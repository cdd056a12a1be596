"""The JSON schemas take every file that we ship, refuse what is wrong, and are easy to point at."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from docs.generate.pages import DOCS, written
from sim.machine import topology_schema
from sim.machine.cluster import load
from sim.recipe import recipe_file
from traincast.commands.parts import starter

jsonschema = pytest.importorskip("jsonschema")
ROOT = DOCS.parent
LINE = re.compile(r"^<!-- schema line -->\n```toml\n#:schema (\S+)\n```$", re.MULTILINE)


def tables() -> dict[Path, str]:
    """Every shipped TOML file with the name of its schema, by the rules of .taplo.toml."""
    rules = tomllib.loads((ROOT / ".taplo.toml").read_text())["rule"]
    return {
        path: Path(rule["schema"]["path"]).stem
        for rule in rules
        for pattern in rule["include"]
        for path in ROOT.glob(pattern)
        if not any(path.match(one) for one in rule.get("exclude", ()))
    }


def faults(schema: str, data: object) -> list[str]:
    said = json.loads((DOCS / f"schema/{schema}.json").read_text())
    return [error.message for error in jsonschema.Draft202012Validator(said).iter_errors(data)]


def test_the_schemas_are_schemas_and_those_of_the_code() -> None:
    for name, schema in (
        ("recipe", recipe_file.json_schema()),
        ("topology", topology_schema.json_schema()),
    ):
        jsonschema.Draft202012Validator.check_schema(schema)
        assert (DOCS / f"schema/{name}.json").read_text() == written(schema)


def test_every_shipped_file_fits_its_schema() -> None:
    assert len(tables()) > 45
    for path, schema in tables().items():
        assert faults(schema, tomllib.loads(path.read_text())) == [], path


@pytest.mark.parametrize(
    ("schema", "file", "key", "value"),
    [
        ("recipe", "validation/recipes/narayanan_145b.toml", "parallelism.tpp", 8),
        ("recipe", "validation/recipes/narayanan_145b.toml", "training.dtype", "fp8"),
        ("recipe", "validation/recipes/narayanan_145b.toml", "cluster.gpus", 0),
        ("topology", "topologies/dgx_h100.toml", "node.link.bandwidth", "450 G/s"),
        ("topology", "topologies/dgx_h100.toml", "gpu.tensor_cores", 4),
        ("topology", "topologies/dgx_h100.toml", "gpu.gemm.bf16.ramp", -1),
        ("topology", "topologies/dgx_h100.toml", "collectives.all_reduce.simple.share", {"2": 0}),
        ("topology", "topologies/dgx_h100.toml", "node.gpus", None),
        ("topology", "topologies/dgx_h100.toml", "gpu.runtime.channels", None),
    ],
)
def test_a_wrong_or_missing_key_is_refused(schema: str, file: str, key: str, value: object) -> None:
    """As traincast itself refuses it; None leaves the key out."""
    data: dict[str, Any] = tomllib.loads((ROOT / file).read_text())
    assert faults(schema, data) == []
    at: Any = data
    *outer, last = key.split(".")
    for part in outer:
        at = at[part]
    at[last] = value
    if value is None:
        del at[last]
    assert faults(schema, data)


def test_a_topology_with_a_base_may_leave_out_anything() -> None:
    assert faults("topology", {"base": "dgx_h100"}) == []
    assert faults("topology", {"name": "mine"})


def test_every_key_of_a_topology_has_a_meaning() -> None:
    """But for those that hold tables, which say for themselves what they are."""
    whole = topology_schema.complete()
    for table in (whole, *whole["$defs"].values()):
        for key, value in table["properties"].items():
            assert "description" in value or "$ref" in str(value), (table["title"], key)


@pytest.mark.parametrize("name", ["dgx_h100", "dgx_a100"])
def test_the_tables_of_a_shipped_topology_are_known(name: str) -> None:
    """With all that the schema says is needed, as the file itself is read."""
    whole = jsonschema.Draft202012Validator(topology_schema.complete())
    text = (ROOT / f"topologies/{name}.toml").read_text()
    assert [error.message for error in whole.iter_errors(tomllib.loads(text))] == []


@pytest.mark.parametrize(
    "example",
    re.findall(r"^```toml\n([^#].*?)^```$", (DOCS / "topology.md").read_text(), re.M | re.S),
)
def test_every_example_of_a_topology_loads(example: str, tmp_path: Path) -> None:
    """Over a shipped one, if it names no base."""
    base = "" if example.startswith("base") else 'base = "dgx_h100"\n'
    (tmp_path / "mine.toml").write_text(base + example)
    assert load(str(tmp_path / "mine.toml"), 16).gpus == 16


@pytest.mark.parametrize("page", ["recipe.md", "topology.md"])
def test_the_line_of_a_page_names_a_schema_from_the_root(page: str) -> None:
    (path,) = LINE.findall((DOCS / page).read_text())
    assert (ROOT / path).resolve() == (DOCS / f"schema/{Path(page).stem}.json").resolve()


def test_a_recipe_in_the_tree_begins_with_the_line(tmp_path: Path) -> None:
    """By a path from its folder; elsewhere, where the path would break, it has none."""
    llama = {
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 4,
        "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 5632,
        "vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(llama))

    def first(folder: Path) -> str:
        data = starter.propose(tmp_path / "config.json", "dgx_h100", 8, folder)
        return starter.text(data, folder).splitlines()[0]

    line = first(ROOT / "validation/recipes")
    assert line == "#:schema ../../docs/schema/recipe.json"
    assert first(Path(os.path.relpath(ROOT))) == "#:schema docs/schema/recipe.json"
    assert first(tmp_path).startswith("# A recipe")
