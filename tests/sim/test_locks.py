"""Writers that meet, are killed, interrupted or have no room: whole files or none, no leavings."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from schedules.input_error import InputError
from sim import files
from sim.files import locks
from tests.sim.test_files import inside

ROOT = Path(__file__).parents[2]


def test_what_killed_processes_left_goes_and_what_others_hold_stays(tmp_path: Path) -> None:
    """The lock of a killed process is free, as that of one that never was."""
    (tmp_path / ".traincast-dead").mkdir()
    (tmp_path / ".traincast-dead/half.txt").write_text("half")
    with locks.temporary(tmp_path) as held, files.staging(tmp_path) as other:
        assert inside(tmp_path) == sorted([held.name, other.name])
    assert inside(tmp_path) == []


@pytest.mark.slow
def test_a_killed_writer_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    """By SIGKILL, in the middle of its writing."""
    code = (
        "import os, signal, sys; from pathlib import Path; from sim import files\n"
        "with files.alone(Path(sys.argv[1])), files.replacing(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    out = tmp_path / "new/s.txt"
    done = subprocess.run([sys.executable, "-c", code, str(out)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(inside(tmp_path)) == 4  # a folder, a lock, a temporary folder with half a file
    with files.alone(out):
        files.write_text(out, "whole")
    assert inside(tmp_path) == ["new", "new/s.txt"]


def test_a_file_has_one_writer_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "new/s.txt"
    with files.alone(out):
        with pytest.raises(InputError, match=r"another process writes .*s\.txt just now"):
            files.alone(out).__enter__()
        with files.alone(out.with_name("t.txt")):  # another file
            pass
        files.write_text(out, "mine")
    with files.alone(out):
        pass
    assert inside(tmp_path) == ["new", "new/s.txt"]


def test_a_writer_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(KeyboardInterrupt), files.alone(tmp_path / "there/a/b/s.txt"):
        raise KeyboardInterrupt
    assert inside(tmp_path) == ["there"]


@pytest.mark.parametrize("said", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_one_sentence_and_leaves_the_old_files(said: int, tmp_path: Path) -> None:
    one, two = tmp_path / "one.txt", tmp_path / "new/two.txt"
    one.write_text("old")

    def full() -> None:
        with files.together(one, two) as made:
            made[0].write_text("new")
            raise OSError(said, "Error writing bytes to file")

    with pytest.raises(InputError) as error:
        full()
    assert str(error.value) == f"cannot write {one} and {two}: {os.strerror(said)}"
    assert (one.read_text(), inside(tmp_path)) == ("old", ["one.txt"])
    with pytest.raises(InputError, match="cannot write to"), files.staging(tmp_path):
        raise OSError(said, "x")


def test_ctrl_c_waits_until_all_files_are_in_their_places(tmp_path: Path) -> None:
    done = []

    def interrupted() -> None:
        with locks.uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("all")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job's may be ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == ["all"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a full device")
@pytest.mark.parametrize("words", [["list", "schedules"], ["list", "models", "--json"]])
def test_a_full_output_is_one_sentence(words: list[str]) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123  a device
        done = subprocess.run(
            [sys.executable, "-m", "traincast.main", *words],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    said = "error: cannot read or write the output: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, said)
