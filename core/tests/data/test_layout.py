"""Names become single path segments, whatever they are."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import layout
from flashinfer_bench.data.layout import files, safe_segment

sys.path.insert(0, str(Path(__file__).parent))
from damage import deepen

ROOT = Path("/data")


@pytest.mark.parametrize(
    "name",
    [
        "gemm_n8_k4",
        "gpt-5-2025-08-07",
        "gemini-2.5-pro",
        "Jane Doe",
        "jane@example.org",
        "a+b=c,d",
        "x..y",
        "UPPER",
        "a",
    ],
)
def test_ordinary_names_stay(name):
    assert safe_segment(name) == name


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("", "%00"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd"),
        ("/abs", "%2Fabs"),
        ("a/b", "a%2Fb"),
        ("a\\b", "a%5Cb"),
        (".hidden", "%2Ehidden"),
        ("end.", "end%2E"),
        (" x ", "%20x%20"),
        ("50%", "50%25"),
        ("a\nb", "a%0Ab"),
        ("a\0b", "a%00b"),
        ("é", "%C3%A9"),
        ("a:b", "a%3Ab"),
        ("\ud800", "%ED%A0%80"),
    ],
)
def test_other_names_are_encoded(name, segment):
    assert safe_segment(name) == segment


@given(st.text(max_size=400))
def test_every_name_is_one_visible_segment(name):
    segment = safe_segment(name)
    assert segment
    assert "/" not in segment
    assert "\\" not in segment
    assert not segment.startswith(".")
    assert segment.isprintable()
    assert segment.isascii()
    assert len(f".{segment}.jsonl.lock") < 255
    assert (ROOT / segment).parent == ROOT
    assert Path(os.path.normpath(ROOT / segment)).parent == ROOT


_TRICKY = st.text("./\\% aé0", max_size=6)


@given(_TRICKY, _TRICKY)
def test_different_names_are_different_segments(one, two):
    assert (safe_segment(one) == safe_segment(two)) is (one == two)


def test_long_names_stay_apart():
    one, two = "x" * 300, "x" * 299 + "y"
    assert safe_segment(one) != safe_segment(two)
    assert safe_segment(one) == safe_segment(one)
    assert len(safe_segment(one)) <= 180


def test_canonical_places():
    assert layout.definition_file(ROOT, "gemm", "g") == ROOT / "definitions/gemm/g.json"
    solution = layout.solution_file(ROOT, "alice", "gemm", "g", "s")
    assert solution == ROOT / "solutions/alice/gemm/g/s.json"
    assert layout.traces_file(ROOT, "gemm", "g") == ROOT / "traces/gemm/g.jsonl"
    assert layout.workloads_file(ROOT, "gemm", "g") == ROOT / "workloads/gemm/g.jsonl"
    blob = layout.blob_file(ROOT, "gemm", "g", "u")
    assert blob == ROOT / "blob/workloads/gemm/g/g_u.safetensors"


@pytest.mark.parametrize("trick", ["..", "../../x", "/etc", "a/../../..", "."])
def test_no_name_leaves_the_folder(trick):
    for path in (
        layout.definition_file(ROOT, trick, trick),
        layout.solution_file(ROOT, trick, trick, trick, trick),
        layout.traces_file(ROOT, trick, trick),
        layout.workloads_file(ROOT, trick, trick),
        layout.blob_file(ROOT, trick, trick, trick),
    ):
        assert Path(os.path.normpath(path)) == path
        assert path.is_relative_to(ROOT)


# ---------------------------------------------------------------------------------- finding files


def touch(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("")


def test_files_are_found_at_any_depth_and_sorted(tmp_path):
    touch(tmp_path, "b/c.json", "a.json", "b/a/x.json", "b/a.txt", "z.jsonl")
    assert files(tmp_path, ".json") == [tmp_path / p for p in ("a.json", "b/a/x.json", "b/c.json")]
    assert files(tmp_path, ".json", ".jsonl")[-1] == tmp_path / "z.jsonl"


def test_hidden_files_and_folders_are_left_out(tmp_path):
    touch(tmp_path, ".git/x.json", ".x.json", "a/.y.json", "a/z.json")
    assert files(tmp_path, ".json") == [tmp_path / "a/z.json"]


def test_a_hidden_folder_above_does_not_matter(tmp_path):
    touch(tmp_path, ".cache/dataset/x.json")
    assert files(tmp_path / ".cache" / "dataset", ".json") == [tmp_path / ".cache/dataset/x.json"]


def test_no_folder_has_no_files(tmp_path):
    assert files(tmp_path / "none", ".json") == []


def test_folders_are_no_files(tmp_path):
    (tmp_path / "x.json").mkdir()
    assert files(tmp_path, ".json") == []


def test_links_are_followed_once(tmp_path):
    touch(tmp_path, "elsewhere/x.json", "root/a.json")
    root = tmp_path / "root"
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "loop").symlink_to(root)
    (root / "dangling.json").symlink_to(tmp_path / "none")
    assert files(root, ".json") == [root / "a.json", root / "linked/x.json"]


def test_links_to_files_are_files(tmp_path):
    touch(tmp_path, "blobs/abc")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "x.json").symlink_to(tmp_path / "blobs/abc")
    assert files(tmp_path / "root", ".json") == [tmp_path / "root/x.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list every folder")
def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    try:
        with pytest.raises(PermissionError):
            files(tmp_path, ".json")
    finally:
        closed.chmod(0o700)


# ------------------------------------------------------------------------------------- odd folders


def test_links_that_lead_nowhere_are_told(tmp_path, caplog):
    touch(tmp_path, "a.json")
    (tmp_path / "round.json").symlink_to("round.json")
    (tmp_path / "gone.json").symlink_to("nowhere")
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    assert files(tmp_path, ".json") == [tmp_path / "a.json"]
    told = sorted(record.getMessage() for record in caplog.records)
    assert [text.partition(": ")[2] for text in told] == ["left out: this link leads nowhere"] * 2
    assert "gone.json" in told[0]
    assert "round.json" in told[1]


def test_a_file_is_no_folder(tmp_path):
    touch(tmp_path, "traces")
    with pytest.raises(NotADirectoryError):
        files(tmp_path / "traces", ".json")


def test_a_folder_that_is_a_link_to_nowhere_is_not_empty(tmp_path):
    """As of a disk that is not mounted: to find nothing would be a lie."""
    (tmp_path / "traces").symlink_to("/nowhere/at/all")
    with pytest.raises(FileNotFoundError):
        files(tmp_path / "traces", ".json")


def test_what_goes_while_it_is_listed_was_never_there(tmp_path, monkeypatch):
    touch(tmp_path, "a/x.json", "b/y.json", "c/z.json")
    original = layout._list

    def listing(folder, seen):
        if folder == str(tmp_path / "b"):
            shutil.rmtree(folder)
        return original(folder, seen)

    monkeypatch.setattr(layout, "_list", listing)
    assert files(tmp_path, ".json") == [tmp_path / "a/x.json", tmp_path / "c/z.json"]


def test_one_folder_that_cannot_be_listed_does_not_hide_the_others(tmp_path, monkeypatch):
    touch(tmp_path, "a/x.json", "b/y.json", "b/c/z.json")
    original = layout._list

    def listing(folder, seen):
        if folder == str(tmp_path / "b"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        return original(folder, seen)

    monkeypatch.setattr(layout, "_list", listing)
    errors = []
    assert files(tmp_path, ".json", on_error=errors.append) == [tmp_path / "a/x.json"]
    assert [error.filename for error in errors] == [str(tmp_path / "b")]
    with pytest.raises(PermissionError):
        files(tmp_path, ".json")


def test_folders_deeper_than_python_can_recurse(tmp_path):
    touch(tmp_path, "a.json")
    deepen(tmp_path)
    errors = []
    assert files(tmp_path, ".json", on_error=errors.append) == [tmp_path / "a.json"]
    assert [error.errno for error in errors] == [errno.ENAMETOOLONG]
    deepen(tmp_path, 1500, name="e", file="b.json")
    found = files(tmp_path, ".json", on_error=errors.append)
    assert [path.name for path in found] == ["a.json", "b.json"]


@given(st.data())
def test_any_tree_gives_what_a_plain_walk_gives(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("tree")
    names = st.sampled_from(["a", "b.json", "c.jsonl", ".d", "é.json"])
    for parts in data.draw(st.lists(st.lists(names, min_size=1, max_size=4), max_size=8)):
        with contextlib.suppress(OSError):
            (root / Path(*parts)).parent.mkdir(parents=True, exist_ok=True)
            (root / Path(*parts)).touch()
    plain = [
        Path(folder, name)
        for folder, _, found in os.walk(root)
        for name in found
        if name.endswith(".json")
        and not any(part.startswith(".") for part in Path(folder, name).relative_to(root).parts)
    ]
    assert files(root, ".json") == [Path(one) for one in sorted(map(str, plain))]
