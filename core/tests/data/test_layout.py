"""Names become single path segments, whatever they are."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data.layout import files, safe_segment

ROOT = Path("/data")


def test_ordinary_names_stay():
    for name in ("gpt-5-2025-08-07", "Jane Doe", "jane@example.org", "a+b=c,d", "x..y", "UPPER"):
        assert safe_segment(name) == name


@pytest.mark.parametrize(
    ("name", "segment"),
    [("", "%00"), (".", "%2E"), ("..", "%2E%2E"), ("/abs", "%2Fabs"), ("a/b", "a%2Fb"),
     ("../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd"), ("a\\b", "a%5Cb"), (".hidden", "%2Ehidden"),
     ("end.", "end%2E"), (" x ", "%20x%20"), ("50%", "50%25"), ("a\nb", "a%0Ab"),
     ("a\0b", "a%00b"), ("é", "%C3%A9"), ("a:b", "a%3Ab"), ("\ud800", "%ED%A0%80")],
)  # fmt: skip
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


def touch(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("")


def test_links_are_followed_once(tmp_path):
    touch(tmp_path, "elsewhere/x.json", "root/a.json")
    root = tmp_path / "root"
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "loop").symlink_to(root)
    (root / "dangling.json").symlink_to(tmp_path / "none")
    assert files(root, ".json") == [root / "a.json", root / "linked/x.json"]


def test_links_that_lead_nowhere_are_told(tmp_path, caplog):
    touch(tmp_path, "a.json")
    (tmp_path / "round.json").symlink_to("round.json")
    (tmp_path / "gone.json").symlink_to("nowhere")
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    assert files(tmp_path, ".json") == [tmp_path / "a.json"]
    told = sorted(record.getMessage() for record in caplog.records)
    assert [text.partition(": ")[2] for text in told] == ["left out: broken link"] * 2
    assert "gone.json" in told[0]
    assert "round.json" in told[1]


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
