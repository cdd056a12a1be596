"""README and the pages of docs as programs: their blocks run, and what they print is compared.

A block is run by its language, in a folder that has ``validation``, ``traces`` and small inputs:
``bash`` lines that begin with ``traincast``, ``python`` in one namespace per page; ``toml`` without
a file's name must be a recipe when laid over a small one. A comment above a block says otherwise:
``<!-- file: NAME -->`` writes the block, ``<!-- run -->``, ``<!-- test -->``, ``<!-- quick test
-->`` and ``<!-- not run: WHY -->`` leave it alone. A ``text`` block is what the block before it
printed, or with ``<!-- last N lines -->`` the end of it; ``python -m tests.docs.pages`` writes
these anew, of all pages or of those that it is given.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from joblib.externals.loky import get_reusable_executor
from typer.testing import CliRunner

from sim.recipe import recipe_file
from traincast.main import app

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"(?:^<!-- ([^\n]+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_ALONE = ("run", "test", "quick test", "not run: ")
GENERATED = "<!-- generated: "
"""A mark of pages whose TOML other tests load (test_generated, test_schemas)."""
HERE = ("validation", "traces", "topologies", "notebooks")
"""Folders of the project that pages speak of."""
WIDTH = "100"  # letters of a line that a command prints
RECIPE = """
[model]
preset = "llama3-8b"
layers = 4
vocab = 1024

[cluster]
topology = "dgx_h100"
gpus = 8

[training]
global_batch = 16
"""
LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 5632,
    "vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
}  # fmt: skip
ORDER = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1"


class Block(NamedTuple):
    """A block of a page: where it begins, the comment above it, its language and its text."""

    at: int
    mark: str
    language: str
    code: str


class Printed(NamedTuple):
    """What a page says that a block prints, and what it printed."""

    block: Block
    real: str


def blocks(text: str) -> list[Block]:
    """Return the blocks of a page, first to last."""
    return [Block(found.start(3), *found.groups(default="")) for found in BLOCK.finditer(text)]


def prepare(folder: Path) -> None:
    """Put into a folder the inputs that pages take for granted.

    Workers of a sweep before are ended: they stay in the folder in which they began.
    """
    get_reusable_executor().shutdown(wait=True)
    for name in HERE:
        (folder / name).symlink_to(ROOT / name)
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "other.toml").write_text(RECIPE.replace("= 16", "= 8"))
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "order.csv").write_text(ORDER)
    ops = {"optype": ["forward-compute", "backward-compute"]}
    times = {"start_ts": [0, 5], "duration": [5, 7]}
    same = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc")
    table = pd.DataFrame({**ops, **times}).assign(**dict.fromkeys(same, 0))
    table.to_parquet(folder / "trace.parquet")


def follow(text: str, folder: Path) -> Iterator[Printed]:
    """Run a page's blocks in ``folder``; yield each ``text`` block beside what was printed."""
    names: dict[str, object] = {"__name__": "page"}
    printed = ""
    for block in blocks(text):
        if block.mark.startswith("file: "):
            (folder / block.mark.removeprefix("file: ")).write_text(block.code)
        elif block.mark.startswith(LEFT_ALONE) or (block.language == "toml" and GENERATED in text):
            continue
        elif block.language == "text":
            yield Printed(block, end(printed, block.mark))
        elif block.language in ("bash", "python", "toml"):
            printed = run(block, names)
        else:
            assert block.language in ("", "json", "console"), (
                f"what is to be done with {block.language}?"
            )


def end(printed: str, mark: str) -> str:
    """Return what was printed, or as many of its last lines as a mark asks for."""
    some = re.fullmatch(r"last (\d+) lines", mark)
    return "\n".join(printed.splitlines()[-int(some[1]) :]) if some else printed


def run(block: Block, names: dict[str, object]) -> str:
    """Run a block here and now; return what it printed."""
    if block.language == "bash":
        return "".join(map(command, block.code.replace("\\\n", "").splitlines()))
    if block.language == "toml":
        recipe_file.parse(completed(tomllib.loads(block.code)))
        return ""
    out = StringIO()
    with redirect_stdout(out):
        exec(compile(block.code, "page", "exec"), names)
    return out.getvalue()


def completed(given: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe, what it lacks filled in from a small one if it names no cluster."""
    if "cluster" in given or "megatron" in given:
        return given
    small: dict[str, Any] = tomllib.loads(RECIPE)
    sections = {
        key: {**small.get(key, {}), **more} for key, more in given.items() if type(more) is dict
    }
    return {**small, **given, **sections}


def command(line: str) -> str:
    """Run a line of the shell that is ``traincast`` with arguments; return what it printed."""
    words = shlex.split(line, comments=True)
    if not words:
        return ""
    assert words[0] == "traincast", f"only traincast is run: {line}"
    ran = CliRunner().invoke(app, words[1:], env={"COLUMNS": WIDTH})
    assert ran.exit_code == 0, f"{line}: {ran.output}"
    return ran.stdout


def lines(text: str) -> str:
    """Return a text without blanks at the ends of its lines, and with one end of line."""
    return "".join(f"{line.rstrip()}\n" for line in text.rstrip().splitlines())


def rewritten(text: str) -> str:
    """Return a page with what its blocks print today."""
    with tempfile.TemporaryDirectory() as name, chdir(name):
        prepare(Path(name))
        for block, real in reversed([*follow(text, Path(name))]):
            text = text[: block.at] + lines(real) + text[block.at + len(block.code) :]
    return text


def main() -> None:
    """Rewrite what the pages say that blocks print."""
    os.environ["MPLBACKEND"] = "agg"
    for page in map(Path, sys.argv[1:] or PAGES):
        page.write_text(rewritten(page.read_text()))


if __name__ == "__main__":
    main()
