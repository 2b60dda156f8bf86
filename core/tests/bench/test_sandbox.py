"""The judge's part of the sandbox: which folders, which measures, and what is said of them."""

import logging
import sys
from pathlib import Path

import pytest

from fib_tests.plugins import PLUGIN_FOLDER
from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.builds import BuildAhead
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.executors.base import Confinement
from flashinfer_bench.bench.plan import Build
from flashinfer_bench.bench.pool import WorkerPool
from flashinfer_bench.bench.sandbox import Sandbox, pick_sandbox, writable_folders
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.plugins import Catalog, SandboxSpec

ALL = ("files", "mounts", "calls", "memory")  # of `Walls` in the plugin of strangers


def spec(name, factory, **options):
    factory = f"strangers_plugin:{factory}"
    options = {"platforms": (sys.platform,), **options}
    return SandboxSpec(name=name, factory=factory, **options)


@pytest.fixture(autouse=True)
def _strangers_in_reach(monkeypatch):
    monkeypatch.syspath_prepend(PLUGIN_FOLDER)


WALLS = Catalog.of(spec("walls", "Walls"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    for name in ("MEMORY_MB", "FILE_MB", "PROCESSES", "WRITABLE"):
        monkeypatch.delenv(f"FIB_SANDBOX_{name}", raising=False)
    return tmp_path / "cache"


class Confined:
    """Answers `confine` like a candidate of some system."""

    def __init__(self, *missing, applied=ALL):
        self.asked = []
        left = tuple(name for name in applied if name not in missing)
        self._answer = Confinement(left, dict.fromkeys(missing, "this kernel is old"))

    def confine(self, writable, *, hidden, timeout_s):
        assert not hidden
        assert timeout_s > 0
        self.asked.append(list(writable))
        return self._answer


@pytest.fixture
def problem(problems):
    solution = problems.good("a")
    return problems.definition(), solution


class TestFolders:
    def test_each_solution_has_its_own(self, problems, cache):
        definition = problems.definition()
        first = writable_folders(definition, problems.solution("def run(x): return x", "a"))
        other = writable_folders(definition, problems.solution("def run(x): return 2 * x", "a"))
        assert first == writable_folders(definition, problems.solution("def run(x): return x", "a"))
        assert first != other
        for (folder,) in (first, other):
            assert Path(folder).is_dir()
            assert cache / "candidates" in Path(folder).parents

    def test_empty_ones_go_after_a_run(self, problem, problems, cache):
        sandbox = Sandbox(catalog=WALLS)
        sandbox.confine(Confined(), *problem)
        other = problems.solution("def run(x): return x", "b")
        sandbox.confine(Confined(), problems.definition(), other)
        (kept,) = writable_folders(problems.definition(), other)
        Path(kept, "kernel").write_text("x")
        sandbox.tidy()
        # Marked and named like a build, so that `fib cache` lists and prunes it.
        assert list((cache / "candidates").glob("*_*/.complete")) == [
            Path(kept).parent / ".complete"
        ]
        assert (cache / "candidates" / ".fib-builds").is_file()
        sandbox.tidy()


class TestLevels:
    def test_auto_says_once_what_is_missing(self, problem, caplog):
        sandbox = Sandbox("auto", WALLS)
        with caplog.at_level(logging.WARNING):
            sandbox.confine_compiler(Confined())  # lacks nothing: there is nothing to say yet
            for _ in range(3):
                sandbox.confine(Confined("files", "calls"), *problem)
        (record,) = caplog.records
        assert "files (this kernel is old); calls (this kernel is old)" in record.message

    def test_an_executor_without_any_is_told(self, problem, caplog):
        Sandbox("auto", WALLS).confine(Confined(applied=()), *problem)
        assert "this executor has none" in caplog.text

    @pytest.mark.parametrize(
        ("missing", "lacking"),
        [(("files", "mounts"), "writing"), (("calls",), "debugging"), (ALL, "writing")],
    )
    def test_strict_refuses(self, problem, missing, lacking):
        with pytest.raises(CapabilityError, match=f"cannot be kept from {lacking}") as caught:
            Sandbox("strict", WALLS).confine(Confined(*missing), *problem)
        assert f"{missing[0]}: this kernel is old" in str(caught.value)
        assert "--sandbox auto" in (caught.value.hint or "")

    def test_memory_is_limited_on_the_cpu_only(self, problem):
        sandbox = Sandbox("strict", WALLS)
        assert sandbox.confine(Confined("memory"), *problem, device="cuda:0") is not None
        with pytest.raises(CapabilityError, match="taking all memory"):
            sandbox.confine(Confined("memory"), *problem, device="cpu")


class TestWhich:
    def test_none_is_installed(self, problem, caplog):
        nothing = Catalog.of(spec("elsewhere", "Walls", platforms=("beos",)))
        sandbox = Sandbox("auto", nothing)
        for _ in range(3):
            assert sandbox.confine(Confined("sandbox", applied=()), *problem) is not None
        (record,) = caplog.records
        assert "without a sandbox: none is installed for" in record.message
        assert "fib-sandbox-linux==" in record.message
        with pytest.raises(CapabilityError, match="no sandbox is installed") as caught:
            Sandbox("strict", nothing).confine(Confined(), *problem)
        assert "fib-sandbox-linux==" in (caught.value.hint or "")
        sandbox.tidy()

    @pytest.mark.parametrize(
        ("factory", "reason"),
        [
            ("NotThere", "cannot be imported"),
            ("Raises", "come apart"),
            ("Nobody", "is not a SandboxMethod"),
        ],
    )
    def test_a_broken_one_loses_only_itself(self, factory, reason, caplog):
        broken = spec("broken", factory, priority=900)
        found = pick_sandbox(Catalog.of(broken, spec("walls", "Walls")))
        assert type(found).__name__ == "Walls"
        assert pick_sandbox(Catalog.of(broken)) is None
        Sandbox("auto", Catalog.of(broken))
        (record,) = caplog.records
        assert record.message.startswith("sandbox 'broken' of ")
        assert reason in record.message


class TestWhere:
    @pytest.fixture
    def asked(self, executor, monkeypatch):
        """What candidates were told, with the events around it."""
        events = executor.events
        kind = type(executor.spawn())

        def confine(self, writable, *, hidden, timeout_s):
            events.append(("confine", self.pid, len(writable)))
            return Confinement(ALL)

        monkeypatch.setattr(kind, "confine", confine)
        events.clear()
        return events

    def test_a_worker_before_it_loads(self, executor, asked, problem):
        pool = WorkerPool(executor, keep=1, sandbox=Sandbox(catalog=WALLS))
        for _ in range(2):
            with pool.worker(("a",)) as worker:
                worker.load(*problem, timeout_s=5)
                assert worker.confinement == Confinement(ALL)
        assert [event[0] for event in asked] == ["spawn", "confine", "load", "rest", "rest"]

    def test_a_process_that_compiles(self, executor, asked, problems):
        build = Build(problems.definition(), problems.compiled("a"))
        options = {"jobs": 1, "timeout_s": 5, "overlap": True, "sandbox": Sandbox(catalog=WALLS)}
        ahead = BuildAhead([build], executor, **options)
        ahead.start()
        ahead.wait()
        ahead.close()
        assert [event[0] for event in asked][:3] == ["spawn", "confine", "compile"]


def test_strict_refuses_before_anything_is_evaluated(problems, executor, catalog, monkeypatch):
    monkeypatch.setattr("flashinfer_bench.bench.benchmark.make_executor", lambda *names: executor)
    dataset = problems.dataset(problems.good("a"))
    config = BenchmarkConfig(sandbox="strict", device="cpu")
    benchmark = Benchmark(dataset, config, catalog=catalog)
    with benchmark, pytest.raises(CapabilityError, match="no sandbox is installed"):
        benchmark.run_all(dump_traces=False)
    assert executor.of("close")
    assert not executor.of("load")
