"""The judge's part of the sandbox: which folders, which measures, and what is said of them."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from flashinfer_bench.bench.ahead import BuildAhead
from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.builds import Build, BuildProcesses
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.executors.base import Confinement
from flashinfer_bench.bench.pool import WorkerPool
from flashinfer_bench.bench.sandbox import NEEDED, NEEDED_ON_CPU, Sandbox, writable_folders
from flashinfer_bench.compile.store import list_entries, prune
from flashinfer_bench.errors import CapabilityError, ConfigError

ALL = tuple({name for names in (NEEDED | NEEDED_ON_CPU).values() for name in names})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    for name in ("MEMORY_MB", "FILE_MB", "PROCESSES", "WRITABLE"):
        monkeypatch.delenv(f"FIB_SANDBOX_{name}", raising=False)
    return tmp_path / "cache"


class Confined:
    """Answers `confine` like a candidate of some system."""

    def __init__(self, *missing: str, applied: tuple[str, ...] = ALL) -> None:
        self.asked: list[list[str]] = []
        left = tuple(name for name in applied if name not in missing)
        self._answer = Confinement(left, dict.fromkeys(missing, "this kernel is old"))

    def confine(self, writable: list[str], *, timeout_s: float) -> Confinement:
        assert timeout_s > 0
        self.asked.append(list(writable))
        return self._answer


@pytest.fixture
def problem(problems: Any) -> Any:
    solution = problems.good("a")
    return problems.definition(), solution


class TestFolders:
    def test_each_solution_has_its_own(self, problems: Any, cache: Path) -> None:
        definition = problems.definition()
        first = writable_folders(definition, problems.solution("def run(x): return x", "a"))
        other = writable_folders(definition, problems.solution("def run(x): return 2 * x", "a"))
        assert first == writable_folders(definition, problems.solution("def run(x): return x", "a"))
        assert first != other
        for (folder,) in (first, other):
            assert Path(folder).is_dir()
            assert cache / "candidates" in Path(folder).parents

    def test_those_of_the_user_come_after(
        self, problem: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chosen = f"{tmp_path}{os.pathsep}{tmp_path / 'b'}"
        monkeypatch.setenv("FIB_SANDBOX_WRITABLE", chosen)
        own, *others = writable_folders(*problem)
        assert others == [str(tmp_path), str(tmp_path / "b")]
        assert own not in others

    def test_none_if_none_can_be_made(self, problem: Any, cache: Path) -> None:
        cache.write_text("not a folder")
        assert writable_folders(*problem) == []

    def test_they_are_listed_and_pruned(self, problem: Any, cache: Path) -> None:
        (folder,) = writable_folders(*problem)
        Path(folder, "kernel").write_bytes(b"x" * 100)
        # What a solution leaves does not change what its entry is taken for.
        Path(folder, "build.json").write_text("{}")
        (entry,) = list_entries()
        assert (entry.builder, entry.state, entry.bytes) == ("candidates", "complete", 102)
        assert prune().removed == ()
        assert len(prune(everything=True).removed) == 1
        assert not Path(folder).exists()

    def test_empty_ones_go_after_a_run(self, problem: Any, problems: Any) -> None:
        sandbox = Sandbox()
        sandbox.confine(Confined(), *problem)
        other = problems.solution("def run(x): return x", "b")
        sandbox.confine(Confined(), problems.definition(), other)
        (kept,) = writable_folders(problems.definition(), other)
        Path(kept, "kernel").write_text("x")
        sandbox.tidy()
        assert [entry.path for entry in list_entries()] == [Path(kept).parent]
        sandbox.tidy()


class TestLevels:
    def test_off_asks_for_nothing(self, problem: Any) -> None:
        candidate = Confined()
        assert Sandbox("off").confine(candidate, *problem) is None
        assert Sandbox("off").confine_compiler(candidate) is None
        assert candidate.asked == []

    def test_auto_says_once_what_is_missing(
        self, problem: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        sandbox = Sandbox("auto")
        with caplog.at_level(logging.WARNING):
            sandbox.confine_compiler(Confined())  # lacks nothing: there is nothing to say yet
            for _ in range(3):
                sandbox.confine(Confined("landlock-files", "landlock-signals"), *problem)
        (record,) = caplog.records
        assert "landlock-files (this kernel is old); landlock-signals" in record.message

    def test_auto_says_nothing_if_nothing_is(
        self, problem: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO):
            assert Sandbox("auto").confine(Confined(), *problem).applied == ALL
        assert not caplog.records

    def test_an_executor_without_any_is_told(
        self, problem: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        Sandbox("auto").confine(Confined(applied=()), *problem)
        assert "this executor has none" in caplog.text

    @pytest.mark.parametrize(
        "names", [("landlock-files",), ("system-calls",), ("no-new-privileges",), ALL]
    )
    def test_strict_refuses(self, problem: Any, names: tuple[str, ...]) -> None:
        with pytest.raises(CapabilityError, match="cannot be kept from") as caught:
            Sandbox("strict").confine(Confined(*names), *problem)
        told = [name for name in names if f"{name}: this kernel is old" in str(caught.value)]
        assert set(told) >= set(names) - {"memory-limit"}  # which is asked for on the CPU only
        assert "--sandbox auto" in (caught.value.hint or "")

    def test_strict_takes_one_of_several(self, problem: Any) -> None:
        done = Sandbox("strict").confine(Confined("mount-namespace"), *problem, device="cpu")
        assert done is not None

    def test_memory_is_limited_on_the_cpu_only(self, problem: Any) -> None:
        sandbox = Sandbox("strict")
        assert sandbox.confine(Confined("memory-limit"), *problem, device="cuda:0") is not None
        with pytest.raises(CapabilityError, match="taking all memory"):
            sandbox.confine(Confined("memory-limit"), *problem, device="cpu")

    @pytest.mark.parametrize("value", ["0", "-1", "some", "1.5"])
    @pytest.mark.parametrize("name", ["MEMORY_MB", "FILE_MB", "PROCESSES"])
    def test_settings_are_checked(
        self, monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        monkeypatch.setenv(f"FIB_SANDBOX_{name}", value)
        with pytest.raises(ConfigError, match=f"FIB_SANDBOX_{name}='{value}'"):
            Sandbox()


class TestWhere:
    @pytest.fixture
    def asked(self, executor: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
        """What candidates were told, with the events around it."""
        events: list[tuple[str, int]] = executor.events
        kind = type(executor.spawn())

        def confine(self: Any, writable: list[str], *, timeout_s: float) -> Confinement:
            events.append(("confine", self.pid, len(writable)))
            return Confinement(ALL)

        monkeypatch.setattr(kind, "confine", confine)
        events.clear()
        return events

    def test_a_worker_before_it_loads(self, executor: Any, asked: Any, problem: Any) -> None:
        pool = WorkerPool(executor, keep=1, sandbox=Sandbox())
        for _ in range(2):
            with pool.worker(("a",)) as worker:
                worker.load(*problem, timeout_s=5)
                assert worker.confinement == Confinement(ALL)
        assert [event[0] for event in asked] == ["spawn", "confine", "load"]

    def test_not_without_a_sandbox(self, executor: Any, asked: Any, problem: Any) -> None:
        for pool in (
            WorkerPool(executor, keep=0),
            WorkerPool(executor, keep=0, sandbox=Sandbox("off")),
        ):
            with pool.worker(("a",)) as worker:
                worker.load(*problem, timeout_s=5)
                assert worker.confinement is None
        assert "confine" not in [event[0] for event in asked]

    def test_compilers_and_what_is_only_built(
        self, executor: Any, asked: Any, problems: Any
    ) -> None:
        processes = BuildProcesses(executor, Sandbox())
        processes.compile(Build(problems.definition(), problems.compiled("a")), timeout_s=5)
        processes.load(Build(problems.definition(), problems.good("b")), timeout_s=5)
        told = [event[0] for event in asked if event[0] in ("confine", "compile", "load")]
        assert told == ["confine", "compile", "confine", "load"]

    def test_compilers_ahead(self, executor: Any, asked: Any, problems: Any) -> None:
        build = Build(problems.definition(), problems.compiled("a"))
        ahead = BuildAhead([build], executor, jobs=1, timeout_s=5, overlap=True, sandbox=Sandbox())
        ahead.start()
        assert ahead.outcome(build.solution) is not None
        ahead.close()
        assert [event[0] for event in asked][:3] == ["spawn", "confine", "compile"]


@pytest.mark.parametrize("level", ["off", "auto", "strict"])
def test_the_setting_is_known(level: str) -> None:
    assert BenchmarkConfig(sandbox=level).sandbox == level


def test_strict_refuses_before_anything_is_evaluated(
    problems: Any, executor: Any, catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashinfer_bench.bench.benchmark.make_executor", lambda *names: executor)
    dataset = problems.dataset(problems.good("a"))
    config = BenchmarkConfig(sandbox="strict", device="cpu")
    benchmark = Benchmark(dataset, config, catalog=catalog)
    with benchmark, pytest.raises(CapabilityError, match="this executor has none"):
        benchmark.run_all(dump_traces=False)
    assert executor.of("close")
    assert not executor.of("load")
