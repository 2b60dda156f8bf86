"""What each check finds: layout, definitions, solutions, workloads and traces."""

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


def test_definitions_that_are_elsewhere_than_they_should_be(maker):
    path = maker.definition(op_type="gemm")
    target = maker.root / "definitions/norm/other.json"
    target.parent.mkdir()
    path.rename(target)
    name, folder = findings(maker, "definitions")
    assert "should be named double.json" in name.message
    assert (folder.field, folder.severity.value) == ("op_type", "warning")
    target.rename(maker.root / "definitions/double.json")  # a flat folder is fine
    assert findings(maker, "definitions") == []


@pytest.mark.parametrize(
    ("changes", "field", "severity"),
    [
        ({"axes": {"N": {"type": "var"}, "M": {"type": "var"}}}, "axes.M", "warning"),
        ({"axes": {"N": {"type": "var"}, "k": {"type": "const", "value": 4}}}, None, None),
        (
            {
                "axes": {"N": {"type": "var"}, "M": {"type": "var"}},
                "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
            },
            *("axes.M", "warning"),
        ),
        ({"axes": {"N": {"type": "const", "value": 0}}}, "axes.N", "warning"),
        (
            {"axes": {}, "inputs": {}, "outputs": {"y": {"shape": None, "dtype": "int32"}}},
            *("axes", "warning"),
        ),
        ({"outputs": {}}, "outputs", "error"),
    ],
    ids=["unused", "a mere parameter", "only of an output", "of size 0", "none", "no output"],
)
def test_axes_and_outputs_of_definitions(maker, changes, field, severity):
    maker.definition(**changes)
    found = [(one.field, one.severity.value) for one in findings(maker, "definitions")]
    assert found == ([(field, severity)] if field else [])


def test_solutions_and_their_names(maker):
    maker.sound()
    maker.solution("alice_double", author="bob")
    maker.solution("lost", definition="triple", file="other")
    lost, file, twice = findings(maker, "solutions")
    assert "another solution named 'alice_double'" in twice.message
    assert (lost.field, lost.severity.value) == ("definition", "error")
    assert "should be named lost.json" in file.message
    assert (twice.severity.value, file.severity.value) == ("error", "warning")


@pytest.mark.parametrize(
    "code", ["def run(x:\n", "def run(x):\nreturn x\n", "(" * 500 + ")" * 500, "x = '\\q'\n\0"]
)
def test_python_that_does_not_parse_is_a_warning(maker, code):
    maker.definition()
    maker.solution(code=code)
    finding = only(maker, "solutions")
    assert finding.severity.value == "warning"
    assert "not valid Python" in finding.message


@pytest.mark.parametrize(
    "code",
    [
        "def run(x): return x",
        "import helper as run",
        "import run.fast",
        "run = lambda x: x",
        "try:\n    from fast import run\nexcept ImportError:\n    run = None",
        "run: object = max",
        "from typing import *\n(run, other) = (1, 2)",
    ],
)
def test_an_entry_point_may_be_bound_in_any_way(maker, code):
    maker.definition()
    maker.solution(code=code)
    assert findings(maker, "solutions") == []


@pytest.mark.parametrize(
    "code", ["def go(x): return x", "def go():\n    def run(x): return x", "class A:\n    run = 1"]
)
@pytest.mark.parametrize("language", ["python", "cute_dsl"])
def test_an_entry_point_that_is_not_there(maker, code, language):
    maker.definition()
    maker.solution(code=code, language=language)
    finding = only(maker, "solutions")
    assert (finding.field, finding.severity.value) == ("spec.entry_point", "warning")


def test_a_workload_of_no_definition(defined):
    defined.workload("triple")
    finding = only(defined, "workloads")
    assert (finding.line, finding.field, finding.severity.value) == (1, "definition", "error")


@pytest.mark.parametrize(
    ("changes", "field", "severity"),
    [
        ({"axes": {"N": 4, "K": 8}}, None, None),
        ({"axes": {"N": 4, "K": 9}}, "workload.axes.K", "error"),
        ({"axes": {}}, "workload.axes.N", "error"),
        ({"axes": {"N": 4, "M": 2}}, "workload.axes.M", "warning"),
        ({"axes": {"N": 0}}, "workload.axes.N", "warning"),
        ({"inputs": {}}, "workload.inputs.x", "error"),
        (
            {"inputs": {"x": {"type": "random"}, "z": {"type": "random"}}},
            *("workload.inputs.z", "warning"),
        ),
        ({"inputs": {"x": {"type": "scalar", "value": 3}}}, "workload.inputs.x", "error"),
    ],
)
def test_axes_and_inputs_of_workloads(maker, changes, field, severity):
    maker.definition(axes={"N": {"type": "var"}, "K": {"type": "const", "value": 8}})
    maker.workload(**changes)
    found = [(one.field, one.severity.value) for one in findings(maker, "workloads")]
    assert found == ([(field, severity)] if field else [])


@pytest.mark.parametrize(
    ("constraint", "sizes", "count"),
    [
        ("N == M + 1", {"N": 5, "M": 4}, 0),
        ("N == M + 1", {"N": 2, "M": 16}, 1),
        ("N % 0 == 1", {"N": 2, "M": 16}, 1),
        ("x[-1].item() == N", {"N": 2, "M": 16}, 0),
    ],
)
def test_constraints(maker, constraint, sizes, count):
    maker.definition(
        axes={"N": {"type": "var"}, "M": {"type": "var"}},
        inputs={"x": {"shape": ["N", "M"], "dtype": "float32"}},
        constraints=[constraint],
    )
    maker.workload(axes=sizes)
    maker.workload(uuid="w2", axes=sizes)
    found = findings(maker, "workloads")
    assert len(found) == 2 * count
    assert all(f.field == "workload.axes" for f in found)


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [
        ("float32", 1, True),
        ("float32", 0.5, True),
        ("int32", 3, True),
        ("int64", 3.0, True),
        ("int32", 0.5, False),
        ("bool", True, True),
        ("bool", 2, False),
    ],
)
def test_scalars_fit_their_dtype(maker, dtype, value, fits):
    maker.definition(
        inputs={"x": {"shape": None, "dtype": dtype}},
        outputs={"y": {"shape": None, "dtype": dtype}},
        axes={},
    )
    maker.workload(axes={}, inputs={"x": {"type": "scalar", "value": value}})
    assert (findings(maker, "workloads") == []) is fits


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


def test_a_solution_that_is_gone_is_told_once(maker):
    maker.sound()
    for _ in range(3):
        maker.trace("gone")
    finding = only(maker, "traces")
    assert (finding.line, finding.severity.value, finding.field) == (5, "warning", "solution")
    assert "one of 3 traces" in finding.message


def test_workloads_that_are_gone_are_told_once_for_a_definition(maker):
    maker.sound()
    maker.trace(uuid="gone")
    maker.trace(uuid="gone too")
    maker.trace(uuid="gone too")
    finding = only(maker, "traces")
    assert finding.severity.value == "warning"
    assert "2 of the 4 workloads" in finding.message
    assert "the first is gone" in finding.message


@pytest.mark.parametrize(
    ("changes", "field", "severity"),
    [
        ({"latency_ms": 0.0}, "evaluation.performance.latency_ms", "error"),
        ({"speedup": 3.0}, "evaluation.performance.speedup_factor", "warning"),
        ({"error": float("nan")}, "evaluation.correctness.max_absolute_error", "warning"),
        ({"speedup": 2.01}, None, None),
        ({"reference_ms": 0.0, "speedup": 0.0}, None, None),
        ({"status": "TIMEOUT"}, None, None),
    ],
)
def test_impossible_numbers(maker, changes, field, severity):
    maker.sound()
    maker.trace(**changes)
    found = [(one.field, one.severity.value) for one in findings(maker, "traces")]
    assert found == ([(field, severity)] if field else [])
