from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.executors.base import (
    CandidateCrashed,
    CandidateError,
    CandidateFailed,
    CandidateMisbehaved,
    CandidateTimeout,
)
from flashinfer_bench.bench.judge.report import (
    MAX_LOG_CHARACTERS,
    is_transient,
    make_log,
    shortened,
    status_of,
)


class TestLog:
    def test_parts(self) -> None:
        assert make_log("", "") == ""
        assert make_log(" bad \n", "") == "bad"
        assert make_log("", " out\n\n") == "--- output ---\nout"
        assert make_log("bad", "out") == "bad\n--- output ---\nout"

    @given(st.text(max_size=50), st.text(max_size=50))
    def test_can_always_be_stored(self, message: str, output: str) -> None:
        make_log(message, output).encode("utf-8")

    def test_lone_surrogates_are_replaced(self) -> None:
        assert make_log("\udc80 bad", "") == "? bad"

    def test_flood_is_cut_in_the_middle(self) -> None:
        log = make_log("the reason", "x" * 200_000 + "the end")
        assert len(log) <= MAX_LOG_CHARACTERS
        assert log.startswith("the reason\n")
        assert log.endswith("the end")
        assert "characters left out" in log

    @given(st.text(max_size=300), st.integers(60, 200))
    def test_shortened(self, text: str, limit: int) -> None:
        short = shortened(text, limit)
        assert len(short) <= limit
        assert short == text or "left out" in short


def errors(stage: str) -> dict[str, CandidateError]:
    return {
        "timeout": CandidateTimeout("m", stage=stage),  # type: ignore[arg-type]
        "crashed": CandidateCrashed("m", stage=stage, exit_code=-9),  # type: ignore[arg-type]
        "failed": CandidateFailed("m", stage=stage, kind="K", traceback=""),  # type: ignore[arg-type]
        "misbehaved": CandidateMisbehaved("m", stage=stage),  # type: ignore[arg-type]
    }


@pytest.mark.parametrize("kind", ["timeout", "crashed", "failed", "misbehaved"])
@pytest.mark.parametrize("stage", ["start", "compile", "load", "inputs", "call", "time"])
def test_every_kind_and_stage_has_a_verdict(kind: str, stage: str) -> None:
    error = errors(stage)[kind]
    expected = "COMPILE_ERROR" if stage in ("compile", "load") else "RUNTIME_ERROR"
    assert status_of(error) == ("TIMEOUT" if kind == "timeout" else expected)
    retried = kind in ("timeout", "crashed") or stage in ("start", "inputs")
    assert is_transient(error) is retried


@pytest.mark.parametrize("stage", ["load", "call", "time"])
def test_a_language_that_compiles_when_it_is_called(stage: str) -> None:
    error = CandidateFailed("m", stage=stage, kind="K", traceback="log", about="build")  # type: ignore[arg-type]
    assert status_of(error) == "COMPILE_ERROR"
    assert not is_transient(error)


@pytest.mark.parametrize("about", ["capability", "storage"])
@pytest.mark.parametrize("stage", ["compile", "load", "call", "time"])
def test_what_a_call_says_about_the_machine_counts_while_it_builds(about: str, stage: str) -> None:
    """The solution's own code may raise these: only building is believed."""
    error = CandidateFailed("m", stage=stage, kind="K", traceback="", about=about)  # type: ignore[arg-type]
    assert error.is_no_fault is (stage in ("compile", "load"))
    if not error.is_no_fault:
        assert status_of(error) == "RUNTIME_ERROR"
    error.building = True
    assert error.is_no_fault
