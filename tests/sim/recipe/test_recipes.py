"""The recipes that come along: legal jobs that fit, and what layouts say of themselves."""

import pytest

from sim.recipe import recipe_file
from sim.runs.check import check
from sim.runs.run import job_of
from validation import tables

pytestmark = pytest.mark.slow

RECIPES = sorted(tables.RECIPES.glob("*.toml"))
LARGE = {
    "dgxc_175b_h100_n512", "dgxc_70b_h100_n64", "dgxc_grok1_h100", "gpt_1t_3072",
    "korthikanti_530b_full", "kwai_65b_offload",
}  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in LARGE))
        for path in RECIPES
    ],
)
def test_every_recipe_is_a_job_that_fits(path):
    found = check(recipe_file.load(path))
    assert found["fits"], found["memory"]


def test_every_recipe_predicts_a_published_figure_or_is_a_layout():
    rows = [row for name in tables.names() for row in tables.read(name).rows]
    layouts = {path for path in RECIPES if path.stem.startswith("layout_")}
    assert {row.recipe for row in rows} | layouts == set(RECIPES)
    assert len(layouts) == 3


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_every_recipe_says_what_it_is(path):
    """A comment above the first table: whose figure it predicts, or that none was published."""
    head = path.read_text().split("\n[")[0]
    assert any(word in head for word in ("Measured", "Derived from", "No run", "PFLOP/s"))


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("layout_2d_tp_fsdp2_64", {"tp": 8, "dp": 8}),
        ("layout_5d_megatron_128", {"tp": 8, "pp": 4, "cp": 2, "dp": 2, "ep": 8}),
        ("layout_3d_zero1_2048", {"tp": 8, "pp": 4, "dp": 64}),
    ],
)
def test_a_layout_has_the_degrees_in_its_name(name, ranks):
    degrees = recipe_file.load(tables.RECIPES / f"{name}.toml").parallelism.model_dump()
    assert {
        key: degrees[key] for key in ("tp", "pp", "cp", "dp", "ep") if degrees[key] > 1
    } == ranks


def test_the_uneven_layout_has_the_stages_it_says():
    job = job_of(recipe_file.load(tables.RECIPES / "layout_3d_zero1_2048.toml"))
    assert [len(job.layers(stage)) for stage in range(job.stages)] == [19, 21, 21, 19]
