import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flashinfer_bench.compile.toolkit import check_relative_path, write_sources
from flashinfer_bench.errors import StorageError, UnsafePathError


def source(path, content="x = 1\n"):
    return SimpleNamespace(path=path, content=content)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("main.py", "main.py"),
        ("a//b.py", "a/b.py"),
        ("a/./b.cu", "a/b.cu"),
        ("größe.py", "größe.py"),
        ("..hidden", "..hidden"),
    ],
)
def test_paths_below_a_folder_are_allowed(path, expected):
    assert check_relative_path(path).as_posix() == expected


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "names no file"),
        ("/etc/passwd", "is absolute"),
        ("..", "leaves its folder"),
        ("../x", "leaves its folder"),
        ("a/../../x", "leaves its folder"),
        ("a\\..\\b", "backslash"),
        ("C:evil.py", "colon"),
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


PATHS = st.one_of(
    st.text(max_size=30),
    st.lists(
        st.sampled_from(["..", ".", "a", "b.py", "", " ", "~", "C:", "\\", "%2e%2e", "/", "…"]),
        max_size=6,
    ).map("/".join),
)


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


@pytest.mark.parametrize(
    "paths", [["a.py", "a.py"], ["a.py", "./a.py"], ["a", "a/b"], ["a/b/c", "a/b"]]
)
def test_two_sources_cannot_have_one_place(tmp_path, paths):
    with pytest.raises(UnsafePathError, match="already exists"):
        write_sources(tmp_path / "root", [source(path) for path in paths])


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
class TestLinks:
    def test_a_linked_folder_is_not_followed(self, tmp_path):
        (tmp_path / "outside").mkdir()
        (tmp_path / "root").mkdir()
        (tmp_path / "root" / "sub").symlink_to(tmp_path / "outside")
        with pytest.raises(UnsafePathError):
            write_sources(tmp_path / "root", [source("sub/main.py")])
        assert list((tmp_path / "outside").iterdir()) == []


def test_a_full_disk_is_a_storage_error(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(StorageError, match="No space left"):
        write_sources(tmp_path, [source("main.py")])
