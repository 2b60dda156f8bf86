"""Findings and reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashinfer_bench.errors import DataError
from flashinfer_bench.validate import Finding, Severity, ValidationReport
from flashinfer_bench.validate.findings import Place


@pytest.mark.parametrize(
    ("line", "field", "where"),
    [
        (None, None, "a/b.json"),
        (3, None, "a/b.json:3"),
        (None, "axes.N", "a/b.json: axes.N"),
        (3, "axes.N", "a/b.json:3: axes.N"),
    ],
)
def test_where(line, field, where):
    finding = Finding(Severity.ERROR, "layout", Path("a/b.json"), "wrong", line, field)
    assert finding.where == where


def test_a_place_makes_findings_about_itself():
    place = Place("workloads", Path("w.jsonl"), 7)
    error = place.error("wrong", "workload.axes", "fix it")
    assert error == Finding(
        Severity.ERROR, "workloads", Path("w.jsonl"), "wrong", 7, "workload.axes", "fix it"
    )
    assert place.warning("odd").severity is Severity.WARNING
    assert place.warning("odd").field is None


def test_a_refusal_keeps_what_the_data_layer_knows():
    refused = DataError("bad", path=Path("elsewhere"), line=3, field="name", hint="rename it")
    at_file = Place("definitions", Path("d.json")).refused(refused)
    assert (at_file.line, at_file.field, at_file.hint) == (3, "name", "rename it")
    assert at_file.path == Path("d.json")
    assert Place("traces", Path("t.jsonl"), 9).refused(refused).line == 9


def test_a_report_tells_errors_from_warnings():
    place = Place("layout", Path("x"))
    report = ValidationReport(
        Path("root"), (place.error("a"), place.warning("b"), place.error("c"))
    )
    assert [f.message for f in report.errors] == ["a", "c"]
    assert [f.message for f in report.warnings] == ["b"]
    assert report.by_check() == {("layout", "error"): 2, ("layout", "warning"): 1}
