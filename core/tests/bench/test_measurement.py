"""Which measurement a run takes, and what the basic one makes of solutions."""

import sys

import pytest

from fib_tests.plugins import PLUGIN_FOLDER
from flashinfer_bench.bench import Benchmark, BenchmarkConfig, PersistentRunner
from flashinfer_bench.bench.evaluators import DefaultEvaluator
from flashinfer_bench.errors import CapabilityError, PluginLoadError
from flashinfer_bench.plugins import Catalog, EvaluatorSpec, MeasurementSpec

CONFIG = BenchmarkConfig(
    warmup_runs=1, iterations=4, num_trials=2, seed=5, device="cpu", sandbox="off"
)
WHICH = [
    # name, status, transient, what its log holds
    ("wrong_later", "INCORRECT_NUMERICAL", False, "elements match"),
    ("misbehaves", "RUNTIME_ERROR", False, "call: bad frame"),
    ("hangs_when_timed", "TIMEOUT", True, "time: no answer"),
    ("takes_nan", "RUNTIME_ERROR", False, "a sample of nan ms is not a duration"),
    ("takes_less_than_none", "RUNTIME_ERROR", False, "a sample of -1.0 ms is not a duration"),
    ("takes_no_time", "RUNTIME_ERROR", False, "cannot tell the latency from zero"),
]
SOURCES = {
    "good": "SAMPLES = [1.0, 2.0]\nprint('hello')\ndef run(x): return x + x",
    "wrong": "def run(x): return x * 3",
    "wrong_later": "n = []\ndef run(x):\n    n.append(x)\n    return x * len(n) * 2",
    "no_module": "import nothing_of_this_name",
    "misbehaves": "def run(x): raise Misbehave",
    "hangs_when_timed": "def on_time(): raise Hang\ndef run(x): return x * 2",
    "takes_nan": "SAMPLES = [float('nan')]\ndef run(x): return x * 2",
    "takes_less_than_none": "SAMPLES = [-1.0]\ndef run(x): return x * 2",
    "takes_no_time": "SAMPLES = [0.0]\ndef run(x): return x * 2",
}


@pytest.fixture
def run(problems, executor, catalog):
    """``run(config, *specs)``: evaluations of all solutions, with more records in the catalog."""

    def run(config=CONFIG, *specs, **sources):
        known = Catalog.of(*(entry.spec for entry in catalog), *specs)
        definition = problems.definition(reference="SAMPLES = [6.0]\ndef run(x): return x * 2")
        solutions = [problems.solution(text, name) for name, text in (sources or SOURCES).items()]
        with PersistentRunner("cpu", executor=executor, catalog=known) as runner:
            return runner.run_workload(definition, problems.workload(), solutions, config)

    return run


class TestBasic:
    @pytest.mark.parametrize(("name", "status", "transient", "log"), WHICH)
    def test_statuses(self, run, name, status, transient, log):
        found = run(**{name: SOURCES[name]})[name]
        assert (found.status, found.provenance.transient) == (status, transient)
        assert log in found.log
        assert found.provenance.extra["measurement"] == "basic"
        assert found.provenance.seed == 5

    def test_record(self, run, executor):
        found = run()["good"]
        assert found.log == "--- output ---\nhello"
        times, told = found.performance, found.provenance
        # One warm-up call and four timed ones in each of two rounds; nobody looks at outputs then.
        assert times.samples_ms == [2.0, 1.0, 2.0, 1.0, 1.0, 2.0, 1.0, 2.0]
        assert (times.latency_ms, times.reference_latency_ms, times.speedup_factor) == (1.5, 6, 4)
        assert times.speedup_interval is not None
        assert executor.of("collect") == executor.of("inspect") == []
        assert told.timing["reference"] == "before"
        known = {"solution_hash", "measurement", "tolerance", "cpu_threads", "reference_calls"}
        assert set(told.extra) == known
        assert "integrity" not in found.correctness.extra
        assert (told.timer, told.evaluator, told.build_s) == ("clock", "default 2", 0.25)

    def test_without_a_latency_of_the_reference(self, run):
        found = run(CONFIG.model_copy(update={"profile_baseline": False}))["good"]
        assert (found.performance.latency_ms, found.performance.speedup_factor) == (1.5, 0.0)
        assert found.provenance.timing["reference"] == "not"

    def test_it_holds_no_clocks(self, problems, executor, catalog, monkeypatch):
        monkeypatch.setattr(
            "flashinfer_bench.bench.benchmark.make_executor", lambda *names: executor
        )
        config = CONFIG.model_copy(update={"lock_clocks_mhz": 1200})
        dataset = problems.dataset(problems.good())
        with (
            Benchmark(dataset, config, catalog=catalog) as benchmark,
            pytest.raises(CapabilityError, match="lock_clocks_mhz: the basic") as caught,
        ):
            benchmark.evaluate()
        assert "fib-judge==" in (caught.value.hint or "")
        assert not executor.of("load")

    def test_an_evaluator_that_raises_is_not_the_solutions_fault(self, run):
        spec = EvaluatorSpec(name="broken", factory=f"{__name__}:Broken")
        sys.modules.setdefault(__name__, sys.modules[Broken.__module__])
        config = CONFIG.model_copy(update={"evaluator": "broken"})
        found = run(config, spec, good=SOURCES["good"])["good"]
        assert (found.status, found.provenance.transient) == ("RUNTIME_ERROR", True)
        assert found.log.startswith("evaluator 'broken' failed on these outputs: LookupError: oops")

    def test_a_failed_build_is_not_repeated_and_keeps_no_baseline(
        self, problems, executor, catalog
    ):
        broken = [problems.solution(SOURCES["no_module"], "broken")]
        definition = problems.definition()
        depths = []
        with PersistentRunner("cpu", executor=executor, catalog=catalog) as runner:
            for _ in range(4):
                (found,) = runner.run_workload(
                    definition, problems.workload(), broken, CONFIG
                ).values()
                assert found.status == "COMPILE_ERROR"
                (error,) = runner._failed_builds.values()
                depths.append(_depth(error.__traceback__))
        assert [name for _, name in executor.of("load")].count("broken") == 1
        assert len(set(depths)) == 1  # what is raised again holds on to all that there was


class Broken(DefaultEvaluator):
    name = "broken"

    def check(self, *problem):
        raise LookupError("oops")


def _depth(traceback):
    return 0 if traceback is None else 1 + _depth(traceback.tb_next)


class TestChoice:
    @pytest.fixture(autouse=True)
    def _strangers_in_reach(self, monkeypatch):
        monkeypatch.syspath_prepend(PLUGIN_FOLDER)

    @staticmethod
    def spec(name, factory, priority=500, **options):
        factory = f"strangers_plugin:{factory}"
        devices = options.pop("devices", ("cpu",))
        return MeasurementSpec(
            name=name, factory=factory, devices=devices, priority=priority, **options
        )

    def measured(self, run, name, *specs):
        config = CONFIG.model_copy(update={"measurement": name})
        found = run(config, *specs, a="def run(x): return x * 2", b="def run(x): return x * 2")
        measured = [each.provenance.extra["measurement"] for each in found.values()]
        assert measured[0] == measured[1]
        if measured[0] == "stranger":
            first, last = (each.log for each in found.values())
            assert first == "\nmeasured by a stranger"
            assert last == f"{first}, for the last time"
        return str(measured[0])

    def test_the_highest_priority_goes_first(self, run):
        assert self.measured(run, None, self.spec("stranger", "Measured")) == "stranger"
        assert self.measured(run, None, self.spec("stranger", "Measured", -1)) == "basic"
        elsewhere = self.spec("stranger", "Measured", devices=("cuda",))
        assert self.measured(run, None, elsewhere) == "basic"

    @pytest.mark.parametrize(
        ("factory", "reason"),
        [
            ("NotThere", "cannot be imported from strangers_plugin:NotThere"),
            ("Raises", "Raises is not a subclass of MeasurementMethod"),
            ("Unnamed", "calls itself 'basic'"),
        ],
    )
    def test_a_broken_one_loses_only_itself(self, run, factory, reason, caplog):
        broken = self.spec("broken", factory)
        assert self.measured(run, None, broken) == "basic"
        assert reason in caplog.text
        with pytest.raises(PluginLoadError, match=reason):
            self.measured(run, "broken", broken)
