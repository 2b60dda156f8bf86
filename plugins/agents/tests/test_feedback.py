"""Feedback records: what they say, their size, and reading them back."""

import json
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fib_agents.diagnosis import Diagnosis, OutputFeedback
from fib_agents.feedback import MOST_BYTES, Feedback, feedback_of
from fib_agents.history import SinceLastTry
from fib_agents.known_causes import Cause
from fib_agents.mismatch import Dimension, MismatchMap
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet
from flashinfer_bench.errors import DataError
from flashinfer_bench.tensors.devices import this_hardware

DEFINITION = Definition.model_validate(
    {
        "name": "double",
        "op_type": "op",
        "axes": {"n": {"type": "var"}},
        "inputs": {"x": {"shape": ["n"], "dtype": "float32"}},
        "outputs": {"y": {"shape": ["n"], "dtype": "float32"}},
        "reference": "def run(x):\n    return x * 2\n",
    }
)


def solution(name, text, author="alice"):
    return Solution.model_validate(
        {
            "name": name,
            "definition": "double",
            "author": author,
            "spec": {
                "language": "python",
                "target_hardware": ["cpu"],
                "entry_point": "main.py::run",
            },
            "sources": [{"path": "main.py", "content": text}],
        }
    )


def trace(name, when, latency=None, interval=None, workload="w", log="", status=None, extra=None):
    """Return a run: with a latency one that passed."""
    run = {
        "status": status or ("PASSED" if latency else "INCORRECT_NUMERICAL"),
        "environment": {"hardware": this_hardware("cpu")},
        "timestamp": f"2026-01-01T00:00:{when:02}",
        "log": log,
        "provenance": {"timer": "wall", "timing": {"cache": "cold"}},
    }
    if latency or status is None:
        run["correctness"] = {"max_absolute_error": 0.5, "max_relative_error": 2.0, "extra": extra}
    if latency:
        run["performance"] = {
            "latency_ms": latency,
            "reference_latency_ms": 2.0,
            "speedup_factor": 2.0 / latency,
            "interval_ms": interval,
        }
    return Trace.model_validate(
        {
            "definition": "double",
            "solution": name,
            "workload": {"uuid": workload, "axes": {"n": 8}, "inputs": {"x": {"type": "random"}}},
            "evaluation": run,
        }
    )


FIRST = solution("first", "def run(x):\n    return x + x\n")
SECOND = solution("second", "def run(x):\n    return 2 * x\n")
OTHER = solution("other", "def run(x):\n    return x * 2\n", "bob")


def dataset(*traces):
    solutions = {"double": [FIRST, SECOND, OTHER]}
    return TraceSet(None, {"double": DEFINITION}, solutions, {}, {"double": list(traces)})


def test_a_solution_that_passed():
    old = trace("first", 1, 2.0, (1.9, 2.1))
    best = trace("other", 2, 0.5, (0.45, 0.55))
    disputed = {"integrity": {"disputed": "by load"}}
    own = trace("second", 3, 1.0, (0.9, 1.1), extra={"integrity": {"loose_tolerance": True}})
    fast = trace("other", 4, 0.1, (0.1, 0.1), workload="another")
    found = feedback_of(own, dataset(old, best, fast))
    assert (found.status, found.decisive_line, found.likely_causes) == ("PASSED", "", ())
    assert (found.latency.latency_ms, found.latency.interval_ms) == (1.0, (0.9, 1.1))
    assert (found.latency.speedup, found.latency.timer, found.latency.cache) == (
        2.0,
        "wall",
        "cold",
    )
    assert (found.best_known.solution, found.best_known.verdict) == ("other", "slower")
    assert found.best_known.ratio == 0.5
    assert found.limit.nbytes == 64
    assert found.marks == ("loose_tolerance",)
    since = found.since_last_try
    assert (since.solution, since.same_workload, since.status_before) == ("first", True, "PASSED")
    assert (since.latency_ratio, since.intervals_overlap) == (0.5, False)
    assert "-    return x + x" in since.diff
    assert "+    return 2 * x" in since.diff
    assert (found.outputs[0].max_absolute_error, found.outputs[0].shape) == (0.5, (8,))
    # Disputed latencies are nothing to compare with; close ones cannot be told apart.
    close = trace("first", 1, 1.05, (0.95, 1.15))
    found = feedback_of(own, dataset(close, trace("other", 2, 0.1, (0.1, 0.1), extra=disputed)))
    assert (found.best_known.solution, found.best_known.verdict) == ("first", "not distinguishable")
    assert found.since_last_try.intervals_overlap is True
    assert feedback_of(own, dataset()).best_known is None


def test_tries_are_ordered_by_their_first_evaluation():
    runs = [trace("first", 1, 2.0), trace("second", 2, 1.0), trace("first", 3, 2.0, workload="v")]
    assert feedback_of(runs[2], dataset(*runs)).since_last_try is None
    assert feedback_of(runs[1], dataset(*runs)).since_last_try.solution == "first"
    elsewhere = trace("second", 4, 1.0, workload="u")
    found = feedback_of(elsewhere, dataset(*runs)).since_last_try
    assert (found.solution, found.same_workload, found.latency_ratio) == ("first", False, None)
    unknown = trace("nobody's", 9, 1.0)
    assert feedback_of(unknown, dataset(*runs)).since_last_try is None


def test_a_solution_that_is_wrong():
    first = {"output": "y", "index": [3], "trial": 0, "actual": 1.0, "expected": 2.0}
    own = trace("second", 3, extra={"matched_ratio": 0.75, "first_failing": first})
    found = feedback_of(own, dataset())
    assert found.decisive_line.startswith("y[3] is 1, expected 2; 25 % of the elements are wrong")
    assert found.latency is None
    assert found.outputs[0].wrong_share == 0.25
    assert (found.outputs[0].atol, found.outputs[0].rtol) == (0.01, 0.01)
    where = MismatchMap(8, 2, 1, 0, (Dimension("n", 8, 2, ((6, 8),), "tail"),), "indices 6 to 7")
    one = OutputFeedback("y", (8,), "float32", 1e-3, 1e-3, 1.0, float("inf"), 0.5, 0.25, where)
    cause = Cause("missing_tail", "likely", "seen", "mask it")
    found = feedback_of(own, dataset(), Diagnosis(True, "", (one,), (cause,)))
    assert found.likely_causes == (cause,)
    assert found.outputs[0].mismatch == where
    again = Feedback.from_json(found.to_json())
    assert again == found
    assert '"max_absolute_error": "Infinity"' in found.to_json()


@pytest.mark.parametrize(
    ("status", "log", "cause"),
    [
        ("RUNTIME_ERROR", "call: CUDA error: an illegal memory access", "invalid_access"),
        ("RUNTIME_ERROR", "call: OutOfResources: out of resource: shared memory, Required: 294912, "
         "Hardware limit: 232448.", "too_much_shared_memory"),
        ("RUNTIME_ERROR", "call: the process was killed by signal 11 (SIGSEGV)", "invalid_access"),
        ("RUNTIME_ERROR", "call: CUDA error: invalid configuration argument", "invalid_launch"),
        ("RUNTIME_ERROR", "call: ZeroDivisionError: division by zero", None),
        ("COMPILE_ERROR", "compile: kernel.cu:3:10: fatal error: cutlass/gemm.h: No such file or "
         "directory", "missing_header"),
        ("COMPILE_ERROR", "load: ModuleNotFoundError: No module named 'cute'", "missing_module"),
        ("COMPILE_ERROR", "load: ImportError: x.so: undefined symbol: _Z3runv", "missing_symbol"),
        ("INCORRECT_SHAPE", "2 outputs instead of 1 (y)", "wrong_number_of_outputs"),
        ("INCORRECT_SHAPE", "output 'y' has shape [4] instead of [8]", "wrong_output_shape"),
        ("INCORRECT_DTYPE", "output 'y' has dtype torch.float16 instead of torch.float32",
         "wrong_output_dtype"),
        ("TIMEOUT", "call: no answer within 300 s", "hang_or_slow"),
    ],
)  # fmt: skip
def test_causes_of_errors(status, log, cause):
    found = feedback_of(trace("second", 1, status=status, log=log), dataset())
    assert [one.cause for one in found.likely_causes] == ([cause] if cause else [])
    if cause == "invalid_access":
        assert "fib memcheck" in found.likely_causes[0].suggestion


def test_what_is_no_feedback():
    workload = trace("second", 1, 1.0).model_copy(update={"solution": None, "evaluation": None})
    with pytest.raises(DataError, match="workload trace"):
        feedback_of(workload, dataset())
    for text in ("", "[]", '{"version": 2}', '{"version": 1}', "{"):
        with pytest.raises(DataError):
            Feedback.from_json(text)


TEXT = st.text(st.characters(), max_size=30)
TIMES = st.sampled_from([1, 40, 900])


@settings(max_examples=60, deadline=None)
@example("\x00", "\x00", "\x00", 9000, 40, 0.1)
@example("\ud800", "\ud800", "é", 9000, 40, 1e-300)
@given(TEXT, TEXT, TEXT, TIMES, st.integers(0, 40), st.floats())
def test_size_is_bounded(name, text, diff, times, count, number):
    """Whatever the names and logs, a record has at most 16 KiB and can be read."""
    name, text, diff = name * times, text * times, diff * times
    ranges = tuple((one * 10**6, one * 10**6 + 5) for one in range(8))
    dimension = Dimension(name[:200], 10**9, 10**8, ranges, "scattered")
    where = MismatchMap(10**12, 10**11, 10**10, 5, (dimension,) * 6, text[:500])
    numbers = (number, number, 1.0, number, number, number)
    output = OutputFeedback(name[:200], (10**9,) * 6, "float32", *numbers, where)
    record = Feedback(
        name, name, name, name, {f"{name}{one}": one for one in range(count)}, name, name, "PASSED",
        decisive_line=text,
        log_excerpt=text,
        outputs=(output,) * (count % 9),
        likely_causes=(Cause(name[:50], "likely", text, text[:400]),) * (count % 7),
        diagnosis_note=text,
        since_last_try=SinceLastTry(name[:200], True, "PASSED", "PASSED", diff[:4000]),
    )  # fmt: skip
    line = record.to_json()
    assert len(line.encode()) <= MOST_BYTES
    assert "\n" not in line
    assert json.loads(line)["version"] == 1
    again = Feedback.from_json(line)
    assert again.status == "PASSED"
    assert replace(again, version=1).to_json() == line
