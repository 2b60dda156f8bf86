"""What core's checks find: places, names, and what is named and not there."""

from __future__ import annotations

import pytest

from flashinfer_bench.validate import validate_dataset


def findings(maker, check):
    return [f for f in validate_dataset(maker.root).findings if f.check == check]


def only(maker, check):
    (finding,) = findings(maker, check)
    return finding


@pytest.fixture
def defined(maker):
    """A dataset with the definition ``double`` and a solution."""
    maker.definition()
    maker.solution()
    return maker


def test_definitions_must_be_there(maker):
    maker.solution()
    finding = only(maker, "layout")
    assert finding.severity.value == "error"
    assert "missing" in finding.message


def test_a_file_in_place_of_a_folder(maker):
    maker.definition()
    (maker.root / "traces").write_text("")
    assert only(maker, "layout").message == "this must be a folder"


@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        ("definitions/op/notes.txt", True),
        ("traces/op/old.jsonl.gz", True),
        ("definitions/.DS_Store", False),
    ],
)
def test_files_that_no_reader_looks_at(maker, path, ignored):
    maker.sound()
    maker.raw(path, "")
    assert [str(f.path) for f in findings(maker, "layout")] == ([path] if ignored else [])


def test_links_that_lead_out_of_the_dataset(maker, tmp_path):
    maker.sound()
    (tmp_path / "elsewhere.json").write_text(
        (maker.root / "definitions/op/double.json").read_text().replace('"double"', '"linked"')
    )
    (maker.root / "definitions/op/linked.json").symlink_to(tmp_path / "elsewhere.json")
    (maker.root / "definitions/op/inside.txt").symlink_to("double.json")
    found = {str(f.path): f.message for f in findings(maker, "layout")}
    assert "leads out" in found["definitions/op/linked.json"]
    assert "leads out" not in found.get("definitions/op/inside.txt", "")


def test_two_definitions_of_one_name(maker):
    maker.sound()
    maker.raw(
        "definitions/other/double.json", (maker.root / "definitions/op/double.json").read_text()
    )
    error = next(f for f in findings(maker, "definitions") if f.severity.value == "error")
    assert error.field == "name"
    assert "another definition named 'double'" in error.message
    assert "definitions/op/double.json" in error.message


def test_a_definition_in_a_file_of_another_name(maker):
    path = maker.definition()
    path.rename(path.with_name("other.json"))
    assert "should be named double.json" in only(maker, "definitions").message


def test_solutions_and_their_names(maker):
    maker.sound()
    maker.solution("alice_double", author="bob")
    maker.solution("lost", definition="triple", file="other")
    lost, file, twice = findings(maker, "solutions")
    assert "another solution named 'alice_double'" in twice.message
    assert (lost.field, lost.severity.value) == ("definition", "error")
    assert "should be named lost.json" in file.message
    assert (twice.severity.value, file.severity.value) == ("error", "warning")


def test_a_workload_of_no_definition(defined):
    defined.workload("triple")
    finding = only(defined, "workloads")
    assert (finding.line, finding.field, finding.severity.value) == (1, "definition", "error")


def test_a_workload_twice(defined):
    defined.definition("triple")
    defined.workload("triple", uuid="same")  # that of another definition
    for size in (1, 1, 2):
        defined.workload(uuid="same", axes={"N": size})
    equal, other = findings(defined, "workloads")
    assert (equal.line, equal.severity.value) == (2, "warning")
    assert "workloads/op/double.jsonl:1" in equal.message
    assert (other.field, other.severity.value) == ("workload.uuid", "error")


def test_a_trace_of_no_definition(maker):
    maker.sound()
    maker.trace(definition="triple")
    errors = validate_dataset(maker.root).errors
    assert {f.field for f in errors} == {"definition", "solution"}
    assert "'alice_double' is a solution of 'double'" in errors[1].message
