"""Processes that may read the shared cache and write to a folder of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flashinfer_bench.compile import cache
from flashinfer_bench.compile.cache import is_complete, own_place, use_overlay
from flashinfer_bench.compile.toolkit import build_once

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def shared(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "shared"))
    return tmp_path / "shared"


@pytest.fixture
def overlay(tmp_path, monkeypatch, shared):
    monkeypatch.setattr(cache, "_overlay", None)
    use_overlay(tmp_path / "own")
    return tmp_path / "own"


def fill(folder: Path) -> None:
    (folder / "library").write_text("x")


def fail(folder: Path) -> None:
    raise AssertionError("it is there already")


def test_what_is_not_there_is_built_apart(shared, overlay):
    got = build_once(shared / "builder" / "a", fill)
    assert got == overlay / "builder" / "a"
    assert is_complete(got)
    assert not shared.exists()


def test_what_others_have_built_is_taken(shared, overlay, monkeypatch):
    monkeypatch.setattr(cache, "_overlay", None)
    build_once(shared / "builder" / "a", fill)
    use_overlay(overlay)
    assert build_once(shared / "builder" / "a", fail) == shared / "builder" / "a"
    assert not overlay.exists()


def test_what_lies_in_the_folder_itself_stays(shared, monkeypatch):
    """It is in the cache, too."""
    monkeypatch.setattr(cache, "_overlay", None)
    use_overlay(shared / "candidates" / "x")
    first = own_place(shared / "builder" / "a")
    assert first == own_place(first) == shared / "candidates" / "x" / "builder" / "a"
