"""From the results of workloads to one answer."""

from __future__ import annotations

import pytest

from flashinfer_bench.bench.compare.result import ContestResult, Obstacle, answer
from flashinfer_bench.stats.compare import Launch, Verdict, compare_launches

WIGGLE = (1.0, 1.001, 0.999, 1.0005, 0.9995, 1.0002, 0.9998, 1.0)


def result(
    factor: float, uuid: str = "w", *, launches: int = 12, noise: float = 1.0
) -> ContestResult:
    taken = []
    for number in range(launches):
        shift = 1 + noise * 1e-3 * (number % 4 - 1.5)
        baseline = tuple(5 * value for value in WIGGLE)
        candidate = tuple(5 * factor * shift * value for value in reversed(WIGGLE))
        taken.append(Launch(baseline, candidate))
    comparison = compare_launches(taken)
    return ContestResult("d", uuid, "old", "new", comparison, tuple(taken), stopped="decided")


def blocked(kind: str = "wrong") -> ContestResult:
    return ContestResult("d", "w", "old", "new", obstacle=Obstacle("candidate", kind, "broken"))


def ask(*results):
    return answer(results, min_effect=0.01, alpha=0.05)


def test_one_workload_keeps_its_verdict():
    found = ask(result(1.1))
    assert found.results[0].verdict is Verdict.SLOWER
    assert found.overall.verdict is Verdict.SLOWER
    assert found.verdicts == {Verdict.SLOWER}
    assert found.results[0].p_adjusted == pytest.approx(found.results[0].comparison.p_value)


def test_p_values_grow_with_the_number_of_workloads():
    alone = ask(result(1.1)).results[0]
    among = ask(*(result(1.1 + 0.001 * n, str(n)) for n in range(10)))
    assert all(one.p_adjusted >= alone.p_adjusted for one in among.results)
    assert [one.workload for one in among.results] == [str(n) for n in range(10)]


def test_slower_here_and_faster_there_is_both():
    found = ask(result(1.1, "a"), result(0.9, "b"))
    assert [one.verdict for one in found.results] == [Verdict.SLOWER, Verdict.FASTER]
    assert found.overall.ratio.estimate == pytest.approx((1.1 * 0.9) ** 0.5, rel=1e-2)


def test_what_could_not_be_compared_stays_in_its_place():
    found = ask(result(1.1, "a"), blocked(), result(1.0, "c"))
    assert [one.verdict for one in found.results] == [Verdict.SLOWER, None, Verdict.SAME]
    assert [one.message for one in found.obstacles] == ["broken"]
    assert found.results[1].p_adjusted is None


def test_without_any_comparison_there_is_no_answer():
    found = ask(blocked())
    assert found.overall is None
    assert found.verdicts == frozenset()


def test_latencies_are_medians_over_all_launches():
    found = result(1.5)
    assert found.baseline_ms == pytest.approx(5.0, rel=1e-3)
    assert found.candidate_ms == pytest.approx(7.5, rel=3e-3)
    assert len(found.samples_ms[0]) == 12 * len(WIGGLE)
    assert blocked().baseline_ms is None
