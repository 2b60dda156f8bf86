"""What there is in a dataset, and what is missing."""

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.selection import Selection
from flashinfer_bench.report import find_gaps, summarize

ALL = Selection()


def test_counts(two_definitions):
    """The second definition has no solution by ``baseline``, and a third is gone."""
    maker = two_definitions
    maker.trace("bob_triple", definition="triple", status="TIMEOUT", hardware="NVIDIA H200")
    maker.trace("lost", definition="lost", hardware="NVIDIA H200")
    found = summarize(TraceSet.from_path(maker.root), ALL)
    names = ("solutions", "workloads", "traces", "passed", "failed")
    counts = {one.definition: [getattr(one, name) for name in names] for one in found.definitions}
    assert counts == {
        "double": [2, 2, 4, 4, 0], "lost": [0, 0, 1, 1, 0], "triple": [1, 1, 1, 0, 1],
    }  # fmt: skip
    assert found.definitions[1].op_type == ""
    assert found.totals() == {
        "definitions": 3, "solutions": 3, "workloads": 3, "traces": 6, "passed": 5, "failed": 1,
    }  # fmt: skip
    assert found.statuses == {"PASSED": 5, "TIMEOUT": 1}


def test_devices_are_ranked_apart(maker):
    maker.sound()
    for uuid in ("w1", "w2"):
        maker.trace("baseline_double", uuid=uuid, latency_ms=1.0, hardware="Fast CPU")
        maker.trace("alice_double", uuid=uuid, latency_ms=1.0, hardware="Fast CPU")
    found = summarize(TraceSet.from_path(maker.root), ALL)
    ranked = [(one.hardware, one.speedup) for one in found.rankings]
    assert ranked == [("Fast CPU", 1.0), ("Test CPU", 4.0)]


def test_timers_are_ranked_apart(maker):
    maker.sound()
    for timer, latency in {"cuda_event": 0.9, "cupti": 0.3}.items():
        timing = {"cache": "cold", "reference": "before"}
        told = {"timer": timer, "stop_rule": "rse", "timing": timing}
        maker.trace("alice_double", latency_ms=latency, provenance=told)
    summary = summarize(TraceSet.from_path(maker.root), ALL)
    timings = {(one.timer, one.reference): one.runs for one in summary.timings}
    assert timings == {("", ""): 4, ("cuda_event", "before"): 1, ("cupti", "before"): 1}
    assert {(one.timer, one.author) for one in summary.rankings} == {("", "alice")}


# -------------------------------------------------------------------------------------- what lacks


def gaps(maker, selection=ALL, **options):
    found = find_gaps(TraceSet.from_path(maker.root), selection, **options)
    return {one.definition: one for one in found}


def test_missing_evaluations_are_counted_by_device(maker):
    maker.sound()
    maker.trace("alice_double", hardware="H200", status="TIMEOUT")
    maker.trace("alice_double", hardware="H200", status="TIMEOUT")
    one = gaps(maker)["double"]
    assert one.evaluated == {"H200": 1, "Test CPU": 4}
    assert one.missing == ("3 of 4 evaluations on H200",)
    assert one.unsolved == ("H200",)


def test_a_device_used_for_one_is_expected_for_all(maker):
    maker.sound()
    maker.definition("triple")
    maker.solution("baseline_triple", definition="triple", author="baseline")
    maker.workload("triple")
    assert gaps(maker)["triple"].missing == ("not on Test CPU",)


def test_the_baseline_is_expected_if_there_is_one_anywhere(maker):
    maker.sound()
    maker.definition("triple")
    maker.solution("bob_triple", definition="triple", author="bob")
    maker.workload("triple")
    maker.trace("bob_triple", definition="triple")
    assert gaps(maker)["triple"].missing == ("no solution by baseline",)
    assert gaps(maker, baseline_author="nobody")["triple"].complete


def test_what_only_traces_know_does_not_count(maker):
    maker.sound()
    maker.trace("gone", uuid="w1")
    maker.trace("alice_double", uuid="gone")
    assert gaps(maker)["double"].evaluated == {"Test CPU": 4}
