"""Files are whole or not there, and what cannot be read or written is said before anything is."""

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
        ("/dev/zero", "cannot read the recipe /dev/zero: it is longer than 4,194,304 bytes"),
    ],
)
def test_what_cannot_be_read_is_said(name, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("latin").write_bytes(b"\xe9")
    with pytest.raises(ValueError) as error:  # noqa: PT011  the message is checked below
        files.read_text(Path(name), "the recipe ")
    assert str(error.value) == sentence
