"""Files are whole or not there, and what cannot be read or written is said before anything is."""

import os
from pathlib import Path

import pytest

from sim import files


def inside(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_checking_makes_nothing(tmp_path):
    assert files.writable(tmp_path / "a/b") == tmp_path / "a/b"
    assert files.replaceable(tmp_path / "a/b/c.txt") == tmp_path / "a/b/c.txt"
    assert inside(tmp_path) == []


def test_a_failure_leaves_neither_file_nor_folder(tmp_path):
    def interrupted() -> None:
        with files.replacing(tmp_path / "a/b.txt") as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert inside(tmp_path) == []
    with files.replacing(tmp_path / "a/b.txt") as temporary:
        temporary.write_text("whole")
    assert inside(tmp_path) == ["a", "a/b.txt"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("file", "cannot write to {}: it is a file"),
        ("file/deep/er", "cannot write to {}: {root}/file is a file"),
        ("x" * 300, "cannot write to {}: File name too long"),
        ("dangling", "cannot write to {}: it is a file"),
    ],
)
def test_a_file_is_no_folder(name, sentence, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(ValueError) as error:  # noqa: PT011  the message is checked below
        files.writable(tmp_path / name)
    assert str(error.value) == sentence.format(tmp_path / name, root=tmp_path)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ValueError, match="it is a folder"):
        files.replaceable(tmp_path)


def test_text_is_read_without_its_mark(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfx = 1\n")
    assert files.read_text(tmp_path / "a") == "x = 1\n"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("none", "cannot read the recipe none: No such file or directory"),
        (".", "cannot read the recipe .: Is a directory"),
        ("latin", "cannot read the recipe latin: it is not text in UTF-8"),
        ("x\0y", "cannot read the recipe 'x\\x00y': no path is written so"),
        ("/dev/zero", "cannot read the recipe /dev/zero: it is a pipe or a device, not a file"),
    ],
)
def test_what_cannot_be_read_is_said(name, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("latin").write_bytes(b"\xe9")
    with pytest.raises(ValueError) as error:  # noqa: PT011  the message is checked below
        files.read_text(Path(name), "the recipe ")
    assert str(error.value) == sentence


def test_a_long_file_and_a_pipe_are_not_read(tmp_path):
    """Neither fills the memory, nor waits for a writer who never comes."""
    (tmp_path / "long").write_text("x" * 11)
    os.mkfifo(tmp_path / "pipe")
    assert files.read_text(tmp_path / "long", most=11) == "x" * 11
    with pytest.raises(ValueError, match="it is longer than 10 bytes"):
        files.read_text(tmp_path / "long", most=10)
    with pytest.raises(ValueError, match="pipe: it is a pipe or a device, not a file"):
        files.read_text(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["pipe", "link"])
def test_a_pipe_is_not_replaced(name, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with pytest.raises(ValueError, match=f"{name}: it is a pipe or a device, not a file"):
        files.write_text(tmp_path / name, "text")
    assert (tmp_path / "pipe").is_fifo()
    assert inside(tmp_path) == ["link", "pipe"]


@pytest.mark.parametrize("there", [True, False])
def test_what_a_link_leads_to_is_replaced(there, tmp_path):
    """And the link stays; it may lead to where no file is yet, through other links."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("deep/file")
    if there:
        (tmp_path / "deep/file").write_text("old")
    files.write_text(tmp_path / "one", "new")
    assert (tmp_path / "deep/file").read_text() == "new"
    assert not (tmp_path / "deep/file").is_symlink()
    assert (tmp_path / "one").is_symlink()
    assert inside(tmp_path) == ["deep", "deep/file", "one", "two"]


def test_a_link_that_leads_back_to_itself_is_refused(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ValueError, match="loop: the link leads back to itself"):
        files.replaceable(tmp_path / "loop")
