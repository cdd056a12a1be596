"""``traincast analyze``: shares and lateness worked by hand, the command's keys and refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sim.analysis.lateness import lateness
from sim.analysis.shares import shares
from sim.graph import Builder, Copy, Fixed
from sim.timeline import Timeline
from traces.own import perfetto
from traincast.commands.parts import recording_tables


def timeline() -> Timeline:
    """Rank 0 computes 10 to 40, all-reduces 30 to 70, copies 80 to 90, idles 70 to 80 and until
    110, when a kernel runs for 10; rank 1 joins the all-reduce at 50. The host counts for nothing.
    """
    rows = [
        (0, "host 1", Fixed(5.0, "host"), 0, 5),
        (0, "stream 7", Fixed(30.0, "gemm"), 10, 40),
        (0, "stream 24", Fixed(20.0, "communication", "tp"), 30, 70),
        (0, "stream 7", Copy(8.0, "d2h"), 80, 90),
        (0, "stream 7", Fixed(10.0, "gemm"), 110, 120),
        (1, "stream 24", Fixed(20.0, "communication", "tp"), 50, 70),
    ]
    b = Builder()
    for rank, stream, work, _, _ in rows:
        b.add("op", rank, stream, work)
    b.join([2, 5])
    start, end = (np.array([row[k] for row in rows], float) for k in (3, 4))
    return Timeline(b.graph(), start, end)


def test_shares_by_hand():
    one, two = shares(timeline())
    assert one.span_s == 110
    idle, compute, transfer = 30 / 110, 40 / 110, 40 / 110
    assert one[2:] == pytest.approx((idle, compute, transfer, 10 / 40))
    assert two == pytest.approx((1, 20, 0, 0, 1, 0))


def test_lateness_by_hand():
    """Rank 0 waits from 30 to 50 for rank 1; its mean over ranks is 10 of 120 s."""
    late = lateness(timeline())
    assert late.waits.tolist() == [20, 0]
    assert late.causes.tolist() == [0, 20]
    assert late.last.tolist() == [0, 1]
    assert (late.worst, late.slowdown) == (1, pytest.approx(120 / 110))


def files(kineto, launched: tuple[int, int] = (8, 8)) -> list:
    """Two ranks with one all-reduce, launched at these times, to which rank 1 comes 40 us later."""
    args = {"Collective name": "allreduce", "Process Group Ranks": "[0, 1]", "Group size": 2}
    out = []
    for rank, late in ((0, 0), (1, 40)):
        events = [
            kineto.event("user_annotation", "ProfilerStep#3", 0, 200),
            *kineto.launched("gemm", 0, 10, 30 + late, 1),
            *kineto.launched(
                "ncclKernel_AllReduce", launched[rank], 50 + late, 60 - late, 2, stream=24, **args
            ),
        ]
        out.append(kineto.write(events, rank))
    return out


def test_json_has_the_keys_of_the_design(traincast, kineto):
    code, out, err = traincast("analyze", *files(kineto), "--step", 3, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["ranks"] == [0, 1]
    assert (found["gpu_ops"], found["gpu_ops_linked"]) == (4, 4)
    assert (found["collectives"], found["collectives_matched"]) == (1, 1)
    first = found["per_rank"][0]
    assert first == pytest.approx(
        {
            "rank": 0, "span_s": 100e-6, "empty_share": 0.1, "compute_share": 0.3,
            "communication_share": 0.6, "overlap_share": 0.0,
        }
    )  # fmt: skip
    assert found["stragglers"]["worst"] == 1
    assert found["stragglers"]["per_rank"][0]["waits_s"] == pytest.approx(40e-6)


def test_tables_ranks_and_windows(traincast, kineto):
    paths = files(kineto)
    code, out, _ = traincast("analyze", kineto.folder)
    assert code == 0
    assert "rank 1 keeps others waiting most: 100.0%" in out
    code, out, _ = traincast("analyze", *paths, "--ranks", 1, "--window", "0:0.00005", "--json")
    assert (code, json.loads(out)["gpu_ops"], json.loads(out)["ranks"]) == (0, 1, [1])


def test_to_perfetto_and_back(traincast, kineto, tmp_path):
    file = tmp_path / "out" / "timeline.json.gz"
    file.parent.mkdir()
    code, out, _ = traincast("analyze", *files(kineto), "--to", "perfetto", file)
    assert code == 0
    assert f"wrote {file}" in out.replace("\n", "")
    assert len(perfetto.read(file).graph) == 8


@pytest.mark.slow
def test_refusals(traincast, kineto, tmp_path):
    paths = files(kineto)
    for arguments, sentence in (
        ([tmp_path / "none.json"], "no file or folder"),
        ([*paths, "--step", 4], "rank 0 has no step 4; its steps are 3"),
        ([*paths, "--to", "tea", tmp_path / "x"], "cannot write 'tea'; there are perfetto"),
        ([*paths, "--window", "2:1"], "--window takes FROM:TO"),
        ([*paths, "--window", "2:3"], "no op lies in the window"),
        ([*paths, "--to", "perfetto", paths[1]], "--to would replace"),
    ):
        code, _, err = traincast("analyze", *arguments)
        assert code == 2
        assert sentence in " ".join(err.split())
    assert not (tmp_path / "x").exists()


def test_causes_by_hand(traincast, kineto):
    """Rank 1 is 40 us later: the all-reduce waits for it from 50 to 90 and moves data until 110."""
    code, out, _ = traincast("analyze", *files(kineto), "--json")
    assert code == 0
    found = json.loads(out)
    path = found["critical_path"]
    assert path["by_cause_s"] == pytest.approx(
        {
            "launch": 82e-6,
            "host operators": 5e-6,
            "host other": 3e-6,
            "communication communication": 20e-6,
        }
    )
    assert (path["span_s"], path["length_s"]) == pytest.approx((110e-6, 107e-6))
    assert path["by_straggler_s"] == pytest.approx({"1": 40e-6})
    bubble = found["bubble"]["by_cause_s"]
    assert sum(bubble.values()) == pytest.approx(110e-6 - (30 + 70) / 2 * 1e-6)
    assert bubble["exposed_communication"] == pytest.approx(20e-6)
    (group,) = found["collective_groups"]
    assert (group["members"], group["groups"], group["number"]) == (2, 1, 1)
    assert [group[f"{key}_s"] for key in ("waiting", "transfer", "longest_wait")] == pytest.approx(
        [20e-6, 20e-6, 40e-6]
    )
    (overlap,) = found["overlap"]
    assert overlap["moving_s"] == pytest.approx(20e-6)
    assert overlap["exposed_s"] - overlap["exposed_waiting_s"] == pytest.approx(20e-6)
    assert found["steps"] == [{"step": 3, "start_s": 0.0, "seconds": pytest.approx(110e-6)}]


def test_slowdown_is_that_over_equal_ranks(traincast, kineto):
    """Rank 1's host comes 40 us later. Of two the lower median is the sooner: then the GPUs need
    60 us instead of 100, and all of it is the host's. The kernels are beside that.
    """
    paths = files(kineto, launched=(40, 80))
    found = json.loads(traincast("analyze", *paths, "--json")[1])["stragglers"]
    assert (found["slowdown"], found["method"]) == (pytest.approx(100 / 60), "equal ranks")
    assert found["by_kind"]["host"] == pytest.approx(100 / 60)
    assert found["bound"] == pytest.approx(110 / 90)
    code, out, _ = traincast(
        "replay", *paths, "--what-if", "remove stragglers", "--what-if", "compute * 0.5", "--json",
        "--hosts", "modelled",
    )  # fmt: skip
    assert code == 0
    replayed = json.loads(out)
    assert replayed["hosts"] == "modelled"
    assert [one["edit"] for one in replayed["what_if"]] == [
        "remove stragglers", "compute * 0.5", "remove stragglers; compute * 0.5",
    ]  # fmt: skip
    assert [one["step_s"] for one in replayed["what_if"]] == pytest.approx([60e-6, 100e-6, 60e-6])
    assert replayed["what_if"][0]["per_rank"][1] == pytest.approx(
        {"rank": 1, "replayed_span_s": 100e-6, "span_s": 60e-6}
    )


def test_what_if_tables_and_refusals(traincast, kineto):
    paths = files(kineto)
    code, out, _ = traincast("replay", *paths, "--what-if", "launch*0.5", "--what-if", "lag * 0")
    assert code == 0
    assert "launch*0.5; lag * 0" in out
    assert "what if 3" in out
    for edit, sentence in (("tea * 2", "launch, lag, link NAME"), ("link ib * 2", "have no names")):
        code, _, err = traincast("replay", *paths, "--what-if", edit)
        assert code == 2
        assert sentence in " ".join(err.split())


@pytest.mark.slow
def test_chakra_and_a_picture(traincast, kineto, tmp_path):
    folder, picture = tmp_path / "chakra", tmp_path / "run.png"
    code, out, _ = traincast(
        "analyze", *files(kineto), "--to", "chakra", folder, "--plot", picture, "--all"
    )
    assert code == 0
    assert sorted(file.name for file in folder.iterdir()) == ["rank.0.et", "rank.1.et"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "collectives, per rank" in out
    found = json.loads(traincast("analyze", folder, "--json")[1])
    assert (found["format"], found["ranks"]) == ("chakra", [0, 1])


@pytest.mark.slow
def test_our_own_timeline_and_annotations(traincast, kineto, tmp_path):
    """A file that was simulated is analysed too; it has no annotations to select."""
    file = tmp_path / "timeline.json.gz"
    perfetto.write(timeline(), file)
    code, out, _ = traincast("analyze", file, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["format"] == "traincast"
    assert sum(found["critical_path"]["by_cause_s"].values()) == pytest.approx(120)
    code, _, err = traincast("analyze", file, "--annotation", "x")
    assert (code, "this is traincast" in " ".join(err.split())) == (2, True)
    paths = files(kineto)
    code, out, _ = traincast("analyze", *paths, "--annotation", "ProfilerStep#3", "--json")
    assert (code, json.loads(out)["gpu_ops"]) == (0, 4)
    code, out, _ = traincast("analyze", *paths, "--annotation", "ProfilerStep", "--instance", 1)
    assert code == 2


def test_what_if_on_what_was_simulated(traincast, tmp_path):
    """Halving the kernels on rank 0: 10 to 25, then 10 of copy and 5 of gemm after their lags."""
    file = tmp_path / "timeline.json.gz"
    perfetto.write(timeline(), file)
    code, out, _ = traincast("replay", file, "--what-if", "compute * 0.5 where rank=0", "--json")
    assert code == 0
    (one,) = json.loads(out)["what_if"]
    assert one["gain_s"] > 0


def test_the_picture_of_a_recording_is_named_after_its_file(traincast, kineto, monkeypatch):
    drawn = []
    monkeypatch.setattr("sim.plots.save", lambda figure, path: drawn.append(figure))
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: None)
    assert traincast("analyze", *files(kineto), "--plot", kineto.folder / "run.png")[0] == 0
    (title,) = [figure.axes[0].get_title(loc="left") for figure in drawn]
    assert title == "rank0.json and 1 more: recorded run of 110.0 us"


RECIPE = """
model = { name = "tiny", layers = 4, hidden = 256, heads = 8, vocab = 500, sequence = 128 }
cluster = { topology = "dgx_a100", gpus = 8 }
parallelism = { tp = 2, pp = 2 }
schedule.name = "one_f_one_b"
training.global_batch = 8
"""


def test_the_table_of_transfers_is_whole_at_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    times = dict.fromkeys(("waiting_s", "moving_s", "exposed_s", "exposed_waiting_s"), 0.1234)
    recording_tables._show_transfers(
        [{"dimension": "embedding", **times, "hidden_s": 0.1234, "hidden_share": 1.0}], 5
    )
    out = capsys.readouterr().out
    assert out.count("123.4 ms") == 5
    assert "…" not in out


@pytest.mark.slow
def test_run_and_analyze_agree_on_what_is_exposed_and_hidden(traincast, tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    out = tmp_path / "out"
    times = json.loads(traincast("run", tmp_path / "recipe.toml", "--out", out, "--json")[1])
    found = json.loads(traincast("analyze", out / "timeline.json.gz", "--json")[1])["overlap"]
    assert {row["dimension"] for row in found} >= {"tp", "pp", "dp"}
    for kind in ("exposed", "exposed_waiting", "waiting", "hidden"):
        told = {name: spread["mean"] for name, spread in times["time_s"][kind].items()}
        assert {row["dimension"]: row[f"{kind}_s"] for row in found} == pytest.approx(told), kind
