"""When two evaluations contradict each other, and when they only differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_compare.replayer import compare
from flashinfer_bench.data import Correctness, Environment, Evaluation, Performance, Provenance

NAN, INF = float("nan"), float("inf")


def evaluation(
    latency=1.0, samples=None, error=1e-3, status="PASSED", reference=2.0, hardware="a test",
    libs=(), **provenance,
):  # fmt: skip
    facts = {}
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        facts["correctness"] = Correctness(max_relative_error=error, max_absolute_error=error)
    if status == "PASSED":
        facts["performance"] = Performance(
            latency_ms=latency, reference_latency_ms=reference, samples_ms=samples,
            speedup_factor=reference / latency,
        )  # fmt: skip
    return Evaluation(
        status=status,
        environment=Environment(hardware=hardware, libs=dict(libs)),
        timestamp="2026-01-01T00:00:00",
        provenance=Provenance(**provenance),
        **facts,
    )


def around(center, spread=0.01):
    return [center * (1 + spread * step) for step in (-2, -1, 0, 1, 2)]


statuses = st.sampled_from(["PASSED", "INCORRECT_NUMERICAL", "RUNTIME_ERROR", "TIMEOUT"])
errors = st.floats(0, 10) | st.sampled_from([NAN, INF])


@given(statuses, errors, st.floats(1e-4, 1e3))
def test_equal_ones_agree(status, error, latency):
    one = evaluation(latency, around(latency), error, status)
    assert compare(one, one, 0.0) == compare(one, one.model_copy(deep=True), 0.0)
    assert compare(one, one, 0.0).drift == compare(one, one, 0.0).differences == ()


@given(statuses, statuses)
def test_another_status_is_drift(first, second):
    found = compare(evaluation(status=first), evaluation(status=second), 10.0)
    assert found.drift == (() if first == second else (f"status {first} -> {second}",))


class TestLatency:
    def test_slower_and_clearly_so(self):
        before, now = evaluation(0.12, around(0.12)), evaluation(0.31, around(0.31))
        (text,) = compare(before, now, 0.1).drift
        assert text.startswith("latency 0.12 -> 0.31 ms, outside 0.1 of the recorded one, and the")
        assert compare(now, before, 0.1).drift  # faster is not what was recorded either

    def test_samples_that_overlap_say_nothing(self):
        before, now = evaluation(1.0, around(1.0, 0.2)), evaluation(1.3, around(1.3, 0.2))
        assert compare(before, now, 0.1).drift == ()

    @pytest.mark.parametrize("samples", [None, [], [1.0, 1.0, 1.0]])
    def test_without_samples_the_tolerance_decides(self, samples):
        (text,) = compare(evaluation(1.0, samples), evaluation(2.0, around(2.0)), 0.1).drift
        assert "too few samples" in text

    def test_another_latency_of_the_reference_is_told(self):
        found = compare(evaluation(reference=2.0), evaluation(reference=4.0), 0.1)
        assert (found.drift, found.differences) == (
            (),
            ("the reference's latency 2 -> 4 ms",),
        )


class TestErrors:
    @pytest.mark.parametrize(
        "pair", [(1e-3, 2e-3), (0.0, 1e-9), (1.0, INF), (NAN, 1.0), (INF, NAN)]
    )
    def test_that_differ_much(self, pair):
        first, second = (evaluation(error=one) for one in pair)
        assert len(compare(first, second, 0.1).drift) == 2

    def test_that_differ_a_little(self):
        found = compare(evaluation(error=1.00e-3), evaluation(error=1.05e-3), 0.1)
        assert found.drift == ()
        assert "max_absolute_error 0.001 -> 0.00105 (differs by 5e-05)" in found.differences


def test_differences_are_told_and_do_not_count():
    before = evaluation(
        hardware="H100", libs={"torch": "2.4", "gone": "1"}, driver="550", sm_clock_mhz=1755,
        plugins={"builder": "b 1"}, toolchain={"nvcc": "12.4"}, extra={"cpu_threads": 3},
    )  # fmt: skip
    now = evaluation(
        hardware="H200", libs={"torch": "2.5", "new": "1"}, driver="560", sm_clock_mhz=1980,
        plugins={"builder": "b 2"}, toolchain={"nvcc": "12.8"}, extra={"cpu_threads": 7},
    )  # fmt: skip
    found = compare(before, now, 0.1)
    assert found.drift == ()
    assert set(found.differences) == {
        "hardware: H100 -> H200",
        "torch: 2.4 -> 2.5",
        "gone: 1 -> nothing",
        "new: nothing -> 1",
        "driver: 550 -> 560",
        "SM clock (MHz): 1755 -> 1980",
        "builder: b 1 -> b 2",
        "nvcc: 12.4 -> 12.8",
        "CPU threads: 3 -> 7",
    }


class TestEditedRecords:
    """What anyone may write into a file of traces must not make a false number hold."""

    def test_a_speedup_that_the_latencies_beside_it_do_not_give(self):
        claimed = evaluation(latency=1.0, reference=2.0)
        assert claimed.performance is not None
        claimed.performance.speedup_factor = 200.0
        (text,) = compare(claimed, evaluation(latency=1.0, reference=2.0), 0.1).drift
        assert "speed-up 200 does not match" in text

    def test_a_reference_that_was_never_so_slow(self):
        (text,) = compare(evaluation(reference=200.0), evaluation(reference=2.0), 0.1).drift
        assert "the reference's latency 200 -> 2 ms" in text

    @given(st.floats(1e-6, 1e6), st.lists(st.floats(1e-6, 1e6), min_size=4, max_size=20))
    def test_no_samples_excuse_more_than_a_factor_of_two(self, claim, samples):
        today = evaluation(latency=1.0, samples=around(1.0), reference=2.0)
        claimed = evaluation(latency=claim, samples=samples, reference=2.0)
        if not compare(claimed, today, 0.1).drift:
            assert 0.49 <= claim <= 2.01
