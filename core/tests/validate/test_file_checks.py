"""Layout, definitions and solutions."""

from __future__ import annotations

import pytest

from flashinfer_bench.validate import validate_dataset


def findings(maker, check):
    report = validate_dataset(maker.root)
    return [f for f in report.findings if f.check == check]


def only(maker, check):
    (finding,) = findings(maker, check)
    return finding


# ------------------------------------------------------------------------------------- layout


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
        ("solutions/alice/main.py.bak", True),
        ("traces/op/old.jsonl.gz", True),
        ("definitions/.DS_Store", False),
        ("traces/op/.double.jsonl.lock", False),
        ("README.md", False),
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


# -------------------------------------------------------------------------------- definitions


def test_two_definitions_of_one_name(maker):
    maker.sound()
    maker.raw(
        "definitions/other/double.json", (maker.root / "definitions/op/double.json").read_text()
    )
    error = next(f for f in findings(maker, "definitions") if f.severity.value == "error")
    assert error.field == "name"
    assert "another definition named 'double'" in error.message
    assert "definitions/op/double.json" in error.message


def test_file_and_folder_should_be_named_after_the_definition(maker):
    path = maker.definition()
    path.rename(path.with_name("other.json"))
    assert "should be named double.json" in only(maker, "definitions").message


def test_the_folder_should_be_the_op_type(maker):
    path = maker.definition(op_type="gemm")
    target = maker.root / "definitions/norm/double.json"
    target.parent.mkdir()
    path.rename(target)
    finding = only(maker, "definitions")
    assert (finding.field, finding.severity.value) == ("op_type", "warning")


def test_a_flat_folder_is_fine(maker):
    path = maker.definition()
    path.rename(maker.root / "definitions/double.json")
    assert findings(maker, "definitions") == []


def test_a_variable_axis_without_use(maker):
    maker.definition(axes={"N": {"type": "var"}, "M": {"type": "var"}})
    assert only(maker, "definitions").field == "axes.M"


def test_a_constant_may_be_a_mere_parameter(maker):
    maker.definition(axes={"N": {"type": "var"}, "top_k": {"type": "const", "value": 4}})
    assert findings(maker, "definitions") == []


def test_a_variable_axis_that_only_an_output_shows(maker):
    outputs = {"y": {"shape": ["M"], "dtype": "float32"}}
    maker.definition(axes={"N": {"type": "var"}, "M": {"type": "var"}}, outputs=outputs)
    finding = only(maker, "definitions")
    assert (finding.field, finding.severity.value) == ("axes.M", "warning")


def test_empty_axes_and_axes_of_size_0(maker):
    maker.definition("none", axes={}, inputs={}, outputs={"y": {"shape": None, "dtype": "int32"}})
    maker.definition(
        "zero",
        axes={"N": {"type": "const", "value": 0}},
    )
    assert [(f.path.stem, f.field) for f in findings(maker, "definitions")] == [
        ("none", "axes"),
        ("zero", "axes.N"),
    ]


def test_a_definition_without_output(maker):
    maker.definition(outputs={})
    assert only(maker, "definitions").severity.value == "error"


# ---------------------------------------------------------------------------------- solutions


def test_two_solutions_of_one_name(maker):
    maker.sound()
    maker.solution("alice_double", author="bob")
    finding = only(maker, "solutions")
    assert "another solution named 'alice_double'" in finding.message
    assert finding.severity.value == "error"


def test_a_solution_of_no_definition(maker):
    maker.sound()
    maker.solution("lost", definition="triple")
    finding = only(maker, "solutions")
    assert (finding.field, finding.severity.value) == ("definition", "error")
    assert "'triple'" in finding.message


def test_the_file_should_be_named_after_the_solution(maker):
    maker.definition()
    maker.solution(file="other")
    assert "should be named alice_double.json" in only(maker, "solutions").message


@pytest.mark.parametrize(
    "code",
    ["def run(x:\n", "def run(x):\nreturn x\n", "(" * 500 + ")" * 500, "x = '\\q'\n\0"],
)
def test_python_that_does_not_parse_is_a_warning(maker, code):
    maker.definition()
    maker.solution(code=code)
    finding = only(maker, "solutions")
    assert finding.severity.value == "warning"
    assert "not valid Python" in finding.message


def test_the_line_that_does_not_parse_is_named(maker):
    maker.definition()
    maker.solution(code="def run(x):\n    return (x\n")
    message = only(maker, "solutions").message
    assert message == "main.py, line 2, is not valid Python: '(' was never closed"


@pytest.mark.parametrize(
    "code",
    [
        "def run(x): return x",
        "from helper import run",
        "import helper as run",
        "import run.fast",
        "run = lambda x: x",
        "if True:\n    def run(x): return x",
        "try:\n    from fast import run\nexcept ImportError:\n    run = None",
        "class run: pass",
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
def test_an_entry_point_that_is_not_there(maker, code):
    maker.definition()
    maker.solution(code=code)
    finding = only(maker, "solutions")
    assert (finding.field, finding.severity.value) == ("spec.entry_point", "warning")


def test_other_languages_are_not_parsed(maker):
    maker.definition()
    maker.solution(code="__global__ void run() {}", language="cuda")
    maker.solution("mojo_double", code="fn run(): pass", language="mojo")
    assert findings(maker, "solutions") == []


def test_an_odd_escape_in_a_solution_warns_nobody(maker):
    maker.definition()
    maker.solution(code="def run(x):\n    return '\\d'\n")
    assert findings(maker, "solutions") == []
