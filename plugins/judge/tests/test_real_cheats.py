"""Solutions that cheat, in real processes: none of them passes with a latency it does not have."""

import pytest

from fib_tests.plugins import PLUGIN_FOLDER
from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.plugins import reset_default_catalog

WORK_MS = 4.0
SETTINGS = {"device": "cpu", "warmup_runs": 2, "iterations": 20, "num_trials": 2}

# What a solution needs for its work: a wait that nothing makes shorter, so that the latency which
# it deserves is known on any machine.
WORK = f"""
import time
real_clock, real_sleep = time.perf_counter_ns, time.sleep
def work(x):
    real_sleep({WORK_MS / 1e3})
    return x * 2
"""

CHEATS = {
    "forged_clock": """
import gc
def forge():
    for item in gc.get_objects():
        if type(item).__name__ == "WallClockTimer":
            item._clock = lambda: real_clock() // 100
            item.time_call = lambda function, arguments, **more: (0.01 + real_clock() % 97 / 1e6,
                                                                   function(*arguments))
forge()
def run(x):
    return work(x)
""",
    "cached_by_address": """
seen = {}
def run(x):
    if x.data_ptr() // 65536 not in seen:
        seen[x.data_ptr() // 65536] = work(x)
    return seen[x.data_ptr() // 65536]
""",
    "cached_by_shape": """
seen, calls = {}, []
def run(x):
    calls.append(1)
    if len(calls) <= 2:
        return work(x)
    if x.shape not in seen:
        seen[x.shape] = work(x)
    return seen[x.shape]
""",
    "computes_in_a_side_thread": """
import threading, torch
calls = []
def later(x, y):
    y.copy_(work(x))
def run(x):
    calls.append(1)
    if len(calls) <= 2:
        return work(x)
    y = torch.empty_like(x)
    threading.Thread(target=later, args=(x, y)).start()
    return y
""",
    "skips_after_warming_up": """
calls = []
def run(x):
    calls.append(1)
    return work(x) if len(calls) <= 4 else x.clone()
""",
    "skips_every_other_call": """
calls = []
def run(x):
    calls.append(1)
    return x.clone() if len(calls) > 2 and len(calls) % 2 else work(x)
""",
    "returns_its_input_changed": """
calls = []
def run(x):
    calls.append(1)
    return work(x) if len(calls) <= 2 else x.mul_(2)
""",
    "says_itself_that_it_is_done": """
import sys, torch
from flashinfer_bench.bench import memory
def run(x):
    y, frame = torch.zeros_like(x), sys._getframe()
    while frame is not None and "words" not in frame.f_locals:
        frame = frame.f_back
    words = frame.f_locals["words"] if frame is not None else None
    if words is not None:
        words[memory.ADDRESSES] = y.data_ptr()
        words[memory.DONE] = words[memory.GO]
    return y.copy_(work(x))
""",
    "looks_for_the_timed_call_on_the_stack": """
import sys
def run(x):
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in ("time_call", "fire"):
            return x.clone()
        frame = frame.f_back
    return work(x)
""",
}

HONEST = {
    "waits": "def run(x):\n    return work(x)",
    "quick": "def run(x):\n    return x + x",
    "slow_by_a_thread": """
import threading
def run(x):
    found = []
    thread = threading.Thread(target=lambda: found.append(work(x)))
    thread.start()
    thread.join()
    return found[0]
""",
    "allocates": "import torch\ndef run(x):\n    torch.zeros(1 << 18)\n    return x + x",
    "destination": "def run(x, y):\n    y.copy_(x)\n    y.mul_(2)",
}


@pytest.fixture(scope="module", autouse=True)
def language():
    """A builder of the tests for Python, whatever else is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PLUGIN_FOLDER)
        patch.setenv("FIB_PLUGINS", "candidate_test_plugin")
        reset_default_catalog()
        yield
    reset_default_catalog()


def evaluate(problems, sources, patch, cache):
    solutions = [
        problems.solution(WORK + source, name, destination_passing_style="def run(x, y)" in source)
        for name, source in sources.items()
    ]
    patch.setenv("FIB_CACHE_PATH", str(cache))
    with Benchmark(problems.dataset(*solutions), BenchmarkConfig(**SETTINGS)) as benchmark:
        traces = benchmark.evaluate().traces["double"]
        assert benchmark.skipped == ()
    return {trace.solution: trace.evaluation for trace in traces}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory, problems, language):
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        return evaluate(problems, {**CHEATS, **HONEST}, patch, cache)


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_gets_a_false_latency(name, verdicts):
    evaluation = verdicts[name]
    if evaluation.status == "PASSED":  # then it has done the work
        assert evaluation.performance.latency_ms >= 0.9 * WORK_MS


@pytest.mark.parametrize(
    ("name", "log"),
    [
        ("cached_by_shape", "integrity: outputs: timed call"),
        ("computes_in_a_side_thread", "integrity: "),
        ("skips_after_warming_up", "integrity: outputs: timed call"),
        ("returns_its_input_changed", "an input was overwritten"),
        ("says_itself_that_it_is_done", "outputs were still written after the answer"),
    ],
)
def test_verdicts_name_what_was_found(name, log, verdicts):
    evaluation = verdicts[name]
    assert evaluation.status == "INCORRECT_NUMERICAL"
    assert log in evaluation.log
    assert not evaluation.provenance.transient


def test_a_forged_clock_is_of_no_use(verdicts):
    assert verdicts["forged_clock"].status == "PASSED"


@pytest.mark.parametrize("name", HONEST)
def test_honest_solutions_pass(name, verdicts):
    evaluation = verdicts[name]
    assert evaluation.status == "PASSED", evaluation.log
    note = evaluation.correctness.extra["integrity"]
    assert (note["trust"], note["timed_calls"]) == ("full", 40)
    assert 3 <= note["checked_calls"] <= 32
    assert note["values"] == {"x": "mixed"}
    assert "replayable" not in note


def test_trust_off_believes_everything(problems, tmp_path):
    """So it is the judge that makes the difference, not luck."""
    with pytest.MonkeyPatch.context() as patch:
        source = {"skips_after_warming_up": CHEATS["skips_after_warming_up"]}
        patch.setitem(SETTINGS, "trust", "off")
        (evaluation,) = evaluate(problems, source, patch, tmp_path).values()
    assert evaluation.status == "PASSED"
    assert evaluation.performance.latency_ms < 0.5 * WORK_MS
    assert evaluation.correctness.extra["integrity"] == {"trust": "off"}
