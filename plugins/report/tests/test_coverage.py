"""What is missing in a dataset."""

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.selection import Selection
from flashinfer_bench.report import find_gaps

ALL = Selection()


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
