"""Compilers and processes that are killed in the middle of a build: no half of it is ever used."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest
from tests.apply_faults.channel import FALLBACK
from tests.apply_faults.compiled import (
    COMPILED_ROWS,
    MOMENTS,
    OTHER_ROWS,
    PYTHON_ROWS,
    Compiler,
    compiled_world,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.plugin("python"),
    pytest.mark.plugin("tvm_ffi"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler for C++"),
]


def who_ran(answer: dict[str, Any], rows: int) -> set[str]:
    """Return who answered the calls of a size; the compiled solution cannot tell its name."""
    return set(answer["ran"][str(rows)])


def judged(answer: dict[str, Any]) -> None:
    """Check what holds whatever has become of the build."""
    assert "error" not in answer, answer["error"]
    assert answer["signal"] == 0
    assert answer["wrong"] == []
    assert who_ran(answer, PYTHON_ROWS) == {"written"}
    assert who_ran(answer, OTHER_ROWS) == {FALLBACK}


def test_half_a_build_is_never_used(nursery, here: str, tmp_path: Path) -> None:
    compiler = Compiler(tmp_path)
    task = {
        "dataset": str(compiled_world(here).write(tmp_path / "dataset")),
        "cache": str(tmp_path / "shared-cache"),
        "compiler": str(compiler.path),
        "victim": str(compiler.victim),
    }
    for moment in MOMENTS:
        compiler.dies(moment, takes_all=True)
        assert nursery.child(**task)["signal"] == signal.SIGKILL
        compiler.dies(moment)
        answer = nursery.child(**task)
        judged(answer)
        assert who_ran(answer, COMPILED_ROWS) == {FALLBACK}
        assert "compiled" in answer["problems"]
    # Nothing of all that is in the way of a compiler that works.
    compiler.dies("never")
    answer = nursery.child(**task)
    judged(answer)
    assert (who_ran(answer, COMPILED_ROWS), answer["hits"]) == (set(), 12)
    # And what it has made is found again, without it.
    steps = compiler.steps()
    compiler.dies("compiling")
    again = nursery.child(**task)
    judged(again)
    assert (who_ran(again, COMPILED_ROWS), compiler.steps()) == (set(), steps)
