"""Recorded parallel steps that ``validate recorded`` cannot predict, or must not."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from validation.processes.compared import OURS
from validation.processes.steps import errors as parallel
from validation.processes.steps import job
from validation.processes.steps.fit import cores_of

TP, DDP, RING = (OURS / f"{name}_4x192.json.gz" for name in ("tp", "ddp", "ring"))
OTHER = OURS / "tp_6x128.json.gz"
PIPELINE = OURS / "virtual_gpipe_P4_M8.json.gz"
SIZES = {
    "blocks": 3, "d": 64, "heads": 4, "ffn": 256, "seq": 32, "mb": 3, "optimizer": "SGD",
    "bucket_bytes": 2**20,
}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([TP, "--calibrate", PIPELINE], "shows no parallel steps, which alone are predicted"),
        ([PIPELINE, "--calibrate", TP], "shows parallel steps, and only pipelines are predicted"),
        ([TP, "--calibrate", "no/such"], "no file or folder no/such"),
        ([TP, "--calibrate", DDP], "another recording of tp"),
        ([RING], "only recordings of ddp, fsdp2, tp are predicted"),
        ([TP, "--draws", 10**9], "--draws 1000000000 must be from 1 to 100000"),
        ([TP, "--seed", -1], "--seed -1 must not be negative"),
    ],
)
def test_what_is_not_predicted_is_one_sentence(traincast, arguments, sentence):
    code, out, err = traincast("validate", "recorded", *arguments)
    assert (code, out) == (2, "")
    assert sentence in " ".join(err.split())


def test_the_same_run_written_otherwise_is_no_source_of_itself(tmp_path):
    shutil.copy(TP, tmp_path)
    said = json.loads(gzip.decompress(TP.read_bytes()))
    again = tmp_path / "again.json"
    again.write_text(json.dumps({**said, "name": "again"}, separators=(",", ":")))
    assert again in parallel.files(tmp_path)
    with pytest.raises(ValueError, match="cannot be predicted from itself"):
        parallel.validate([tmp_path / TP.name], draws=1)
    said["facts"]["command"] = "as another file says it"
    again.write_bytes(gzip.compress(json.dumps(said, separators=(",", ":")).encode()))
    with pytest.raises(ValueError, match="cannot be predicted from itself"):
        parallel.validate([tmp_path / TP.name], draws=1)


def test_a_file_named_twice_is_predicted_once():
    there = OURS / ".." / "data" / TP.name
    (one,) = parallel.validate([TP, there, TP], [OTHER], draws=1)
    assert one.path == TP


@pytest.mark.parametrize("key", ["blocks", "d", "heads", "ffn", "seq", "mb", "bucket_bytes"])
@pytest.mark.parametrize("value", [None, -1, "4", True])
def test_sizes_that_a_recording_lacks_are_named(key, value):
    job.recipe("ddp", 2, SIZES)
    with pytest.raises(ValueError, match=f"config has {key} = "):
        job.recipe("ddp", 2, {**SIZES, key: value})


@pytest.mark.parametrize("optimizer", [None, "", "lamb", 3])
def test_an_optimizer_that_no_recording_runs_is_refused(optimizer):
    with pytest.raises(ValueError, match="predictions know only sgd, adam, adamw"):
        job.recipe("tp", 2, {**SIZES, "optimizer": optimizer})


@pytest.mark.parametrize("cores", ["two", -3, 2.5, [1]])
def test_cores_are_a_number(cores):
    (run,) = (of.run for of in parallel.validate([TP], [OTHER], draws=1))
    odd = type(run)(**{**vars(run), "facts": {"machine": {"cores": cores}}})
    with pytest.raises(ValueError, match="is of a machine with"):
        cores_of(odd)


def test_the_file_says_so(traincast, tmp_path):
    cut = Path(tmp_path, "tp.json.gz")
    cut.write_bytes(TP.read_bytes()[:1000])
    code, out, err = traincast("validate", "recorded", cut)
    assert (code, out) == (2, "")
    assert f"{cut} is not a file of CPU steps" in " ".join(err.split())


def test_costs_of_another_machine_predict_nothing(tmp_path):
    said = json.loads(gzip.decompress(TP.read_bytes()))
    said["facts"]["machine"]["cores"] = 64
    moved = tmp_path / "tp.json"
    moved.write_text(json.dumps(said, separators=(",", ":")))
    with pytest.raises(ValueError, match="of a machine with 64 cores, but costs are known for one"):
        parallel.validate([moved], [OTHER], draws=1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["parallel", "ddp", "--sizes", "d=64,d=128"], "--sizes names d twice"),
        (["parallel", "ddp", "--sizes", "blocks=100000000"], "more than a process can hold"),
        (["sweep", "gemm", "--seconds", "nan"], "--seconds nan must be a time above 0"),
        (["sweep", "gemm", "--seconds", "-3"], "--seconds -3 must be a time above 0"),
    ],
)
def test_what_cannot_be_recorded_is_one_sentence(traincast, tmp_path, arguments, sentence):
    code, _, err = traincast("record", *arguments, "--out", tmp_path / "out")
    assert code == 2
    assert sentence in " ".join(err.split())
    assert not [*tmp_path.iterdir()]
