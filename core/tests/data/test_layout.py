"""Names become single path segments, whatever they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import layout
from flashinfer_bench.data.layout import files, safe_segment

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
