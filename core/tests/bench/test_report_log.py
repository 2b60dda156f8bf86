import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.evaluation import (
    MAX_LOG_CHARACTERS,
    is_transient,
    make_log,
    status_of,
)
from flashinfer_bench.bench.executors.base import (
    CandidateFailed,
)


class TestLog:
    @given(st.text(max_size=50), st.text(max_size=50))
    def test_can_always_be_stored(self, message, output):
        make_log(message, output).encode("utf-8")

    def test_flood_is_cut_in_the_middle(self):
        log = make_log("the reason", "x" * 200_000 + "the end")
        assert len(log) <= MAX_LOG_CHARACTERS
        assert log.startswith("the reason\n")
        assert log.endswith("the end")
        assert "characters left out" in log


@pytest.mark.parametrize("stage", ["load", "call", "time"])
def test_a_language_that_compiles_when_it_is_called(stage):
    error = CandidateFailed("m", stage=stage, kind="K", traceback="log", about="build")  # type: ignore[arg-type]
    assert status_of(error) == "COMPILE_ERROR"
    assert not is_transient(error)


@pytest.mark.parametrize("about", ["capability", "storage"])
@pytest.mark.parametrize("stage", ["compile", "load", "call", "time"])
def test_what_a_call_says_about_the_machine_counts_while_it_builds(about, stage):
    """The solution's own code may raise these: only building is believed."""
    error = CandidateFailed("m", stage=stage, kind="K", traceback="", about=about)  # type: ignore[arg-type]
    assert error.is_no_fault is (stage in ("compile", "load"))
    if not error.is_no_fault:
        assert status_of(error) == "RUNTIME_ERROR"
    error.building = True
    assert error.is_no_fault
