"""The layers: which checks they have, and those of the baseline and of benchmarks."""

from __future__ import annotations

import pytest

from flashinfer_bench.errors import UnknownNameError
from flashinfer_bench.validate import CHECKS, LAYERS, validate_dataset
from flashinfer_bench.validate.layers import chosen_checks, layer_of, needs_records


def only(maker, check):
    (finding,) = (f for f in validate_dataset(maker.root).findings if f.check == check)
    return finding


def test_every_check_is_in_one_layer():
    checks = [check for names in LAYERS.values() for check in names]
    assert sorted(checks) == sorted(CHECKS)
    assert all(check in LAYERS[layer_of(check)] for check in CHECKS)


def test_records_are_read_only_where_they_are_needed():
    assert not needs_records(chosen_checks(["layout", "definition", "solution"]))
    assert needs_records(chosen_checks(["workload"]))
    assert chosen_checks(None) == set(CHECKS)


def test_an_unknown_layer_is_named(maker):
    with pytest.raises(UnknownNameError, match="no layer 'tracks'") as caught:
        validate_dataset(maker.sound().root, ["tracks"])
    assert "layout, definition" in caught.value.hint


def broken_everywhere(maker):
    maker.sound()
    maker.raw("definitions/notes.txt", "")
    maker.raw("definitions/op/broken.json", "{")
    maker.solution("lost", definition="lost")
    maker.workload(uuid="w9", axes={})
    maker.trace("gone")
    return maker.root


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_has_the_findings_of_its_checks(maker, layer):
    root = broken_everywhere(maker)
    everything = validate_dataset(root).findings
    report = validate_dataset(root, [layer])
    assert report.findings == tuple(f for f in everything if f.check in LAYERS[layer])
    assert report.layers == (layer,)
    assert ("traces" in report.counts) is (layer not in ("layout", "definition", "solution"))


# ----------------------------------------------------------------------------------- baseline


def test_without_any_baseline_nothing_is_missing(maker):
    maker.definition()
    maker.solution()
    maker.workload()
    assert validate_dataset(maker.root).findings == ()


def test_a_definition_without_baseline_where_others_have_one(maker):
    maker.sound()
    maker.definition("triple")
    maker.solution("alice_triple", definition="triple")
    maker.workload("triple")
    finding = only(maker, "baseline")
    assert str(finding.path) == "definitions/op/triple.json"
    assert finding.severity.value == "note"
    assert "none of them has a score" in finding.message
    report = validate_dataset(maker.root)
    assert (report.errors, report.warnings, report.notes) == ((), (), (finding,))


def test_two_baselines(maker):
    maker.sound()
    maker.solution("baseline_second", author="baseline")
    finding = only(maker, "baseline")
    assert finding.severity.value == "error"
    assert finding.path.name == "baseline_second.json"
    assert "baseline_double.json" in finding.message


def test_workloads_that_the_baseline_has_not_passed(maker):
    maker.sound()
    for uuid in ("w3", "w4"):
        maker.workload(uuid=uuid)
        maker.trace("alice_double", uuid=uuid)
    maker.trace("baseline_double", uuid="w4", status="TIMEOUT")
    finding = only(maker, "baseline")
    assert "not passed on 2 workloads" in finding.message
    assert finding.message.endswith("w3")
    assert finding.severity.value == "note"


def test_a_baseline_trace_in_another_file_counts(maker):
    maker.sound()
    maker.workload(uuid="w3")
    path = maker.trace("baseline_double", uuid="w3")
    path.rename(path.with_name("zz.jsonl"))
    maker.trace("alice_double", uuid="w3")
    findings = validate_dataset(maker.root).findings
    assert [f for f in findings if f.check == "baseline"] == []


# ---------------------------------------------------------------------------------- benchmark


def test_solutions_without_workloads(maker):
    maker.definition()
    maker.solution()
    assert only(maker, "benchmark").message == "it has solutions and no workload to run them on"


def test_workloads_without_solutions(maker):
    maker.definition()
    maker.workload()
    assert only(maker, "benchmark").message == "it has workloads and no solution to run on them"


def test_a_bare_definition_is_fine(maker):
    maker.definition()
    assert validate_dataset(maker.root).findings == ()


@pytest.mark.parametrize(
    ("reference", "takes"),
    [
        ("def run():\n    pass", "0"),
        ("def run(x, y):\n    pass", "2"),
        ("def run(x, y, z=1):\n    pass", "2 to 3"),
        ("def run(x):\n    pass\ndef run():\n    pass", "0"),
    ],
)
def test_a_reference_that_does_not_take_the_inputs(maker, reference, takes):
    maker.definition(reference=reference)
    finding = only(maker, "benchmark")
    assert (finding.severity.value, finding.field) == ("error", "reference")
    assert finding.message == f"run takes {takes} inputs, but 1 are declared"


@pytest.mark.parametrize(
    "reference",
    [
        "def run(x):\n    pass",
        "def run(x, y=2):\n    pass",
        "def run(*inputs):\n    pass",
        "def run(x, *, y=1):\n    pass",
        "import functools\n@functools.cache\ndef run():\n    pass",
    ],
)
def test_references_that_may_take_the_inputs(maker, reference):
    maker.definition(reference=reference)
    assert validate_dataset(maker.root).findings == ()
