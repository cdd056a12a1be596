"""The wheel: built, unpacked into a folder of its own, and used from there alone."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest

import traincast as tc

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not importlib.util.find_spec("hatchling"), reason="needs hatchling (traincast[test])"
    ),
]

ROOT = Path(__file__).parents[2]
FIRST = "validation/recipes/korthikanti_22b_full.toml"
Call = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the wheel holds, as an installer puts it into site-packages."""
    made = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(made)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = made.glob("*.whl")
    with ZipFile(wheel) as packed:
        packed.extractall(made / "site")
    return made / "site"


@pytest.fixture
def call(folder: Path, tmp_path: Path) -> Call:
    """Runs Python with the wheel's packages and what they depend on, and without the checkout."""
    depends = [path for path in sys.path if path.endswith("site-packages")]
    set_up = (
        f"import sys; sys.path = [p for p in sys.path if p not in {depends!r}]; "
        f"sys.path[:0] = [{str(folder)!r}]; sys.path += {depends!r}; "
    )

    def run(code: str) -> str:
        command = [sys.executable, "-I", "-S", "-B", "-c", set_up + code]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run


def test_it_runs_the_first_recipe(call: Call, folder: Path) -> None:
    recipe = folder / FIRST
    code = f"import traincast as tc; print(tc.run({str(recipe)!r}).summary['step_time_s'])"
    assert float(call(code)) == tc.run(ROOT / FIRST).timeline.seconds


def test_all_that_is_loaded_is_the_wheels(call: Call, folder: Path) -> None:
    code = (
        "import traincast as tc; [getattr(tc, name) for name in tc.__all__]; "
        "ours = ('traincast', 'sim', 'schedules', 'topologies', 'traces', 'validation'); "
        "of = [m for n, m in sys.modules.items() if n.split('.')[0] in ours]; "
        "print(*filter(None, (getattr(m, '__file__', None) for m in of)))"  # a folder has none
    )
    files = call(code).split()
    assert len(files) > 100
    assert all(file.startswith(str(folder)) for file in files)


def test_the_command_finds_every_file_that_it_reads(call: Call, tmp_path: Path) -> None:
    """Presets, topologies, schedules, the page, rules for kernels, and its own version."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'model = { preset = "llama3-8b", layers = 2, vocab = 1024 }\n'
        'cluster = { topology = "dgx_h100", gpus = 8 }\ntraining.global_batch = 8\n'
    )
    kinds = ("models", "layers", "topologies", "schedules", "strategies", "analyses")
    lines = [
        ["--version"],
        *(["list", kind] for kind in kinds),
        ["run", "recipe.toml", "--out", "out"],
        ["analyze", "out/traces"],
    ]
    said = call(f"""
import contextlib
from traincast.main import main
for line in {lines!r}:
    try:
        main(line)
    except SystemExit as end:
        assert not end.code, line
from traces.kernel_names import rules
print(rules(None).of("ncclDevKernel_AllReduce_Sum_f32_RING_LL").kind)
""")
    assert said.startswith(f"traincast {version('traincast')}\n")
    assert all(name in said for name in ("llama3-8b", "dgx_h100", "zb_v", "ZeRO", "near_critical"))
    assert said.rstrip().endswith("communication")
    assert (tmp_path / "out/report.html").stat().st_size > 10_000


def test_it_holds_the_data_files_of_the_checkout(folder: Path) -> None:
    """Every file of the packages that git knows, and nothing of tests, docs and notebooks."""
    packages = ["traincast", "sim", "schedules", "topologies", "traces", "validation"]
    known = subprocess.run(
        ["git", "ls-files", *packages], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if known.returncode:
        pytest.skip("the checkout is no git repository")
    held = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    meta = {name for name in held if ".dist-info/" in name}
    assert held - meta == {name for name in known.stdout.split("\n") if (ROOT / name).is_file()}
    entry = next(name for name in meta if name.endswith("entry_points.txt"))
    assert "traincast = traincast.main:main" in (folder / entry).read_text()
