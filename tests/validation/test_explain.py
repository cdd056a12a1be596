"""Published steps explained: which row it is, and what the commands print and draw."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schedules.input_error import InputError
from sim.runs.explain import Explained
from traincast import main as cli
from validation import explain as explaining
from validation.explain import explain_row
from validation.run import compare

ADDED = {"sustained": 1.0, "attention": 0.0, "cap": 0.25, "overlap": 0.5, "spread": 0.25}


def traincast(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main(list(arguments))
    return int(end.value.code or 0)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "explain", lambda *_: Explained(8.0, ADDED))


@pytest.mark.usefixtures("made_up")
def test_a_row_is_found_by_its_id() -> None:
    row, step = explain_row("530B_full")
    assert (row.id, row.figure, step.predicted) == ("530B_full", "step", 10.0)
    with pytest.raises(InputError, match=r"^no row '530B_ful' of .*; did you mean 530B_full\?$"):
        explain_row("530B_ful")
    with pytest.raises(InputError, match=r"^no row '530B_full' of published step times"):
        explain_row("530B_full", ["fms_fsdp"])
    with pytest.raises(InputError, match="is no step time but state; only steps are explained"):
        explain_row("22b_none_state")


@pytest.mark.slow
@pytest.mark.usefixtures("made_up")
def test_what_is_left_is_said_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "row.png"
    assert traincast("validate", "--explain", "530B_full", "--json", "--plot", str(picture)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["added_s"] == ADDED
    assert found["left_s"] == found["measured_s"] - found["predicted_s"] == 49.05 - 10.0
    assert picture.stat().st_size > 10_000
    assert traincast("validate", "--explain", "530B_full") == 0
    out = capsys.readouterr().out
    assert "sustained clock" in out
    assert "+390.5%" in out
    assert traincast("validate", "--explain", "530B_full", "--out", "page.md") == 2
    assert "--explain takes tables of published figures" in capsys.readouterr().err


@pytest.mark.slow
def test_a_published_step_is_the_one_that_validate_predicts() -> None:
    row, step = explain_row("torchtitan_8b_h100_n8_fsdp_compile")
    assert step.predicted == pytest.approx(compare(row).predicted, rel=1e-12)
    assert step.added["cap"] > 0.05 * step.boost


@pytest.mark.slow
def test_run_explains_its_step(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'model = { preset = "llama3-8b", layers = 1, vocab = 1024 }\n'
        'cluster = { topology = "dgx_h100", gpus = 2 }\ntraining.global_batch = 2\n',
        encoding="utf-8",
    )
    assert traincast("run", str(recipe), "--explain", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["explain"]["predicted_s"] == pytest.approx(found["step_time_s"], rel=1e-12)
    out = tmp_path / "out"
    assert traincast("run", str(recipe), "--explain", "--out", str(out)) == 0
    assert (out / "explain.png").exists()
    assert "slowest GPU" in capsys.readouterr().out
