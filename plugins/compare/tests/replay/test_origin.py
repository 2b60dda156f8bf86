"""What a trace says of its toolchain, whatever lies in the cache of builds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fib_compare.origin import toolchain_of
from flashinfer_bench.compile.builder import content_digest
from flashinfer_bench.compile.cache import COMPLETE

if TYPE_CHECKING:
    from pathlib import Path

KEY = {"compiler": "g++ 13.2\nCopyright", "c_compiler": "gcc 13.2", "flags": "-O3"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    return tmp_path / "cache"


def build(cache: Path, definition: Any, solution: Any) -> Path:
    """Make a folder as a builder leaves it."""
    digest = content_digest(definition, solution, "x", json.dumps(KEY, sort_keys=True))
    folder = cache / "cuda" / f"x_{digest}"
    folder.mkdir(parents=True)
    (folder / "info.json").write_text(json.dumps({"key": KEY}))
    (folder / COMPLETE).touch()
    return folder


def test_a_build_of_another_solution_is_not_taken(cache: Path, problems: Any) -> None:
    build(cache, problems.definition(), problems.solution("def run(x):\n    return x\n", "b"))
    assert toolchain_of(problems.definition(), problems.good("a")) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"key": 3}', '{"key": {}}', "\x00"])
def test_broken_notes_of_a_build_are_passed_over(cache: Path, problems: Any, text: str) -> None:
    folder = build(cache, problems.definition(), problems.good("a"))
    for path in folder.iterdir():
        if path.name != COMPLETE:
            path.write_text(text)
    assert toolchain_of(problems.definition(), problems.good("a")) == {}
