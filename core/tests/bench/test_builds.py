from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from flashinfer_bench.bench.builds import (
    Build,
    BuildProcesses,
    compiles_ahead,
    solution_key,
)
from flashinfer_bench.bench.executors.base import (
    Candidate,
    CandidateCrashed,
    CandidateFailed,
    CandidateTimeout,
)
from flashinfer_bench.errors import RunnerFatalError

if TYPE_CHECKING:
    from flashinfer_bench.plugins import Catalog


@pytest.fixture
def build_of(problems: Any) -> Any:
    return lambda solution: Build(problems.definition(), solution)


def failed(about: str, stage: str = "compile") -> CandidateFailed:
    return CandidateFailed(
        "K: what went wrong",
        stage=stage,  # type: ignore[arg-type]
        kind="K",
        traceback="line 1\nline 2\n",
        about=about,  # type: ignore[arg-type]
    )


class TestOutcome:
    @pytest.mark.parametrize(
        ("details", "state"),
        [
            ({"fresh": True}, "built"),
            ({}, "cached"),
            ({"error": failed("build")}, "failed"),
            ({"error": failed("raised", "load")}, "failed"),
            ({"error": failed("storage")}, "unavailable"),
            ({"error": failed("capability", "load")}, "unavailable"),
            ({"error": CandidateTimeout("no answer", stage="compile")}, "failed"),
            ({"error": CandidateCrashed("it died", stage="load", exit_code=-9)}, "failed"),
        ],
    )
    def test_state(self, details: Any, state: str, build_of: Any, problems: Any) -> None:
        outcome = build_of(problems.good("a")).outcome(0.5, **details)
        assert (outcome.state, outcome.seconds) == (state, 0.5)
        assert (outcome.definition, outcome.solution, outcome.language) == ("double", "a", "python")

    def test_which_binding_was_asked_for(self, build_of: Any, problems: Any) -> None:
        asked = problems.solution("int x;", "a", language="cpp", binding="tvm-ffi")
        assert build_of(asked).outcome().binding == "tvm-ffi"
        assert build_of(problems.good("b")).outcome().binding is None

    def test_what_is_said(self, build_of: Any, problems: Any) -> None:
        build = build_of(problems.good("a"))
        told = build.outcome(error=failed("build"), output="a remark\n")
        assert told.reason == "what went wrong"
        assert told.log == "line 1\nline 2\na remark"
        died = build.outcome(error=CandidateTimeout("no answer", stage="compile"), output="…")
        assert (died.reason, died.log) == ("no answer", "…")
        assert (build.outcome().reason, build.outcome().log) == ("", "")


class TestProcesses:
    def test_compile_runs_nothing(self, executor: Any, build_of: Any, problems: Any) -> None:
        processes = BuildProcesses(executor)
        outcome = processes.compile(build_of(problems.compiled("a")), timeout_s=5)
        assert (outcome.state, outcome.builder, outcome.error) == ("built", "fake", None)
        assert [event[0] for event in executor.events] == ["spawn", "compile", "compiled", "close"]

    def test_load(self, executor: Any, build_of: Any, problems: Any) -> None:
        processes = BuildProcesses(executor)
        assert processes.load(build_of(problems.good("a")), timeout_s=5).state == "built"
        broken = processes.load(build_of(problems.solution("1 / 0", "b")), timeout_s=5)
        assert (broken.state, broken.reason) == ("failed", "division by zero")
        assert executor.started == 2
        assert len(executor.of("close")) == len(executor.of("spawn")) == 2

    @pytest.mark.parametrize(
        ("how", "state"),
        [
            ("build", "failed"),
            ("storage", "unavailable"),
            ("capability", "unavailable"),
            ("hang", "failed"),
            ("crash", "failed"),
        ],
    )
    def test_failures(
        self, how: str, state: str, executor: Any, build_of: Any, problems: Any
    ) -> None:
        build = build_of(problems.compiled("a", how))
        outcome = BuildProcesses(executor).compile(build, timeout_s=5)
        assert outcome.state == state
        assert outcome.error is not None
        assert len(executor.of("close")) == 1

    def test_an_executor_that_cannot_compile_ahead(
        self, executor: Any, build_of: Any, problems: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It leaves everything to `load`: that is no cache hit."""
        candidate = executor.spawn()
        monkeypatch.setattr(type(candidate), "compile", Candidate.compile)
        outcome = BuildProcesses(executor).compile(build_of(problems.compiled("a")), timeout_s=5)
        assert (outcome.builder, outcome.state) == ("", "built")

    def test_no_process(self, executor: Any, build_of: Any, problems: Any) -> None:
        executor.broken = True
        with pytest.raises(RunnerFatalError):
            BuildProcesses(executor).compile(build_of(problems.compiled("a")), timeout_s=5)

    def test_interrupt_ends_them_all(self, executor: Any, build_of: Any, problems: Any) -> None:
        processes = BuildProcesses(executor)
        executor.gates = {"a": threading.Event(), "b": threading.Event()}
        outcomes: list[Any] = []
        threads = [
            threading.Thread(
                target=lambda n=name: outcomes.append(
                    processes.compile(build_of(problems.compiled(n, "crash")), timeout_s=60)
                )
            )
            for name in "ab"
        ]
        for thread in threads:
            thread.start()
        while len(executor.of("compile")) < 2:
            pass
        processes.interrupt()
        for thread in threads:
            thread.join(30)
        assert processes.interrupted
        assert [type(outcome.error) for outcome in outcomes] == [CandidateCrashed] * 2
        late = processes.compile(build_of(problems.compiled("c")), timeout_s=5)
        assert late.error is not None


def test_key_tells_contents_apart(problems: Any) -> None:
    keys = [solution_key(problems.compiled("a", how)) for how in ("", "build", "")]
    assert keys[0] == keys[2] != keys[1]
    assert keys[0][:3] == ("solution", "double", "a")


def test_who_is_compiled_ahead(problems: Any, catalog: Catalog) -> None:
    assert compiles_ahead(problems.compiled("a"), catalog, "cpu")
    assert not compiles_ahead(problems.good("a"), catalog, "cpu")
    elsewhere = problems.solution("x", language="gpu_language")
    assert not compiles_ahead(elsewhere, catalog, "cuda:0")
    assert not compiles_ahead(problems.solution("x", language="mojo"), catalog, None)
