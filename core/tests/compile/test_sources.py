from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flashinfer_bench.compile.toolkit import check_relative_path, write_sources
from flashinfer_bench.errors import StorageError, UnsafePathError


def source(path: str, content: str = "x = 1\n") -> SimpleNamespace:
    return SimpleNamespace(path=path, content=content)


def tree(root):
    return {
        file.relative_to(root).as_posix(): file.read_bytes()
        for file in root.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("main.py", "main.py"),
        ("./main.py", "main.py"),
        ("a//b.py", "a/b.py"),
        ("a/./b.cu", "a/b.cu"),
        ("deep/er/est/file.h", "deep/er/est/file.h"),
        ("with space.py", "with space.py"),
        ("größe.py", "größe.py"),
        ("..hidden", "..hidden"),
        (".py.bak", ".py.bak"),
        ("a..b/c", "a..b/c"),
    ],
)
def test_paths_below_a_folder_are_allowed(path, expected):
    assert check_relative_path(path).as_posix() == expected


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "names no file"),
        (".", "names no file"),
        ("./", "names no file"),
        ("/etc/passwd", "is absolute"),
        ("//host/share", "is absolute"),
        ("..", "leaves its folder"),
        ("../x", "leaves its folder"),
        ("a/../../x", "leaves its folder"),
        ("a/../b", "leaves its folder"),
        ("a\\..\\b", "backslash"),
        ("C:evil.py", "colon"),
        ("file.py:stream", "colon"),
        ("a\0b", "control character"),
        ("a\nb.py", "control character"),
        ("a/\x7f", "control character"),
        ("\ud800.py", "not valid Unicode"),
        ("a/" + "x" * 256, "more than 255 bytes"),
        ("ü" * 128, "more than 255 bytes"),
    ],
)
def test_every_other_path_is_refused_with_the_reason(path, reason):
    with pytest.raises(UnsafePathError, match=reason):
        check_relative_path(path)


def test_a_refused_path_is_not_repeated_at_full_length():
    with pytest.raises(UnsafePathError) as caught:
        check_relative_path("/" + "x" * 100_000)
    assert len(str(caught.value)) < 500


PATHS = st.one_of(
    st.text(max_size=30),
    st.lists(
        st.sampled_from(["..", ".", "a", "b.py", "", " ", "~", "C:", "\\", "%2e%2e", "/", "…"]),
        max_size=6,
    ).map("/".join),
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(paths=st.lists(PATHS, max_size=4))
@example(paths=["a", "a/b"])
@example(paths=["a/b", "a"])
@example(paths=["x", "x"])
def test_whatever_the_paths_nothing_is_written_elsewhere(tmp_path_factory, paths):
    outside = tmp_path_factory.mktemp("outside")
    root = outside / "root"
    try:
        written = write_sources(root, [source(path, path.upper()) for path in paths])
    except (UnsafePathError, StorageError):
        written = []
    assert {entry.name for entry in outside.iterdir()} <= {"root"}
    for file in written:
        assert root in file.parents
        assert ".." not in file.parts


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.text())
def test_contents_are_written_byte_for_byte(tmp_path_factory, content):
    root = tmp_path_factory.mktemp("root")
    (file,) = write_sources(root, [source("f", content)])
    assert file.read_bytes() == content.encode("utf-8", "surrogatepass")


def test_line_ends_are_kept(tmp_path):
    (file,) = write_sources(tmp_path, [source("f.bat", "a\r\nb\rc\n")])
    assert file.read_bytes() == b"a\r\nb\rc\n"


def test_files_come_back_in_order_and_folders_are_made(tmp_path):
    root = tmp_path / "not" / "there"
    written = write_sources(root, [source("z/y/x.py"), source("a.py"), source("z/w.cu")])
    assert [file.relative_to(root).as_posix() for file in written] == ["z/y/x.py", "a.py", "z/w.cu"]
    assert set(tree(root)) == {"z/y/x.py", "a.py", "z/w.cu"}


def test_all_paths_are_checked_before_anything_is_written(tmp_path):
    with pytest.raises(UnsafePathError):
        write_sources(tmp_path / "root", [source("fine.py"), source("../not_fine.py")])
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    "paths", [["a.py", "a.py"], ["a.py", "./a.py"], ["a", "a/b"], ["a/b/c", "a/b"]]
)
def test_two_sources_cannot_have_one_place(tmp_path, paths):
    with pytest.raises(UnsafePathError, match="is there already"):
        write_sources(tmp_path / "root", [source(path) for path in paths])


def test_a_file_that_is_there_is_never_overwritten(tmp_path):
    (tmp_path / "main.py").write_text("precious")
    with pytest.raises(UnsafePathError):
        write_sources(tmp_path, [source("main.py")])
    assert (tmp_path / "main.py").read_text() == "precious"


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
class TestLinks:
    def test_a_linked_folder_is_not_followed(self, tmp_path):
        (tmp_path / "outside").mkdir()
        (tmp_path / "root").mkdir()
        (tmp_path / "root" / "sub").symlink_to(tmp_path / "outside")
        with pytest.raises(UnsafePathError):
            write_sources(tmp_path / "root", [source("sub/main.py")])
        assert tree(tmp_path / "outside") == {}

    def test_a_linked_file_is_not_followed(self, tmp_path):
        (tmp_path / "outside.py").write_text("precious")
        (tmp_path / "root").mkdir()
        (tmp_path / "root" / "main.py").symlink_to(tmp_path / "outside.py")
        with pytest.raises(UnsafePathError):
            write_sources(tmp_path / "root", [source("main.py")])
        assert (tmp_path / "outside.py").read_text() == "precious"

    def test_a_link_to_nowhere_is_not_followed(self, tmp_path):
        (tmp_path / "root").mkdir()
        (tmp_path / "root" / "main.py").symlink_to(tmp_path / "made_by_link.py")
        with pytest.raises(UnsafePathError):
            write_sources(tmp_path / "root", [source("main.py")])
        assert not (tmp_path / "made_by_link.py").exists()


def test_a_root_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="sources cannot be written"):
        write_sources(tmp_path / "file" / "root", [source("main.py")])


def test_a_full_disk_is_a_storage_error(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(StorageError, match="No space left"):
        write_sources(tmp_path, [source("main.py")])
