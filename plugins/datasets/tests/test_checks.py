"""What the checks of this plugin find: records, tensor files, baselines, what a benchmark lacks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fib_tests.findings import findings, only
from flashinfer_bench.validate import known_layers, validate_dataset

PATH = "blob/workloads/op/double/x.safetensors"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"


def test_a_definition_in_the_folder_of_another_op_type(maker):
    path = maker.definition(op_type="gemm")
    (maker.root / "definitions/norm").mkdir()
    path.rename(maker.root / "definitions/norm/double.json")
    finding = only(maker, "definitions")
    assert (finding.field, finding.severity.value) == ("op_type", "warning")
    finding_path = maker.root / finding.path
    finding_path.rename(maker.root / "definitions/double.json")  # a flat folder is fine
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


@pytest.mark.parametrize(
    ("codes", "field", "told"),
    [
        (
            ["def run(x:\n", "def run(x):\nreturn x\n", "(" * 500 + ")" * 500, "x = '\\q'\n\0"],
            *("sources.0.content", "is not valid Python"),
        ),
        (
            ["def go(x): return x", "def go():\n    def run(x): return x", "class A:\n    run = 1"],
            *("spec.entry_point", "defines no 'run' at its top level"),
        ),
    ],
)
@pytest.mark.parametrize("language", ["python", "cute_dsl"])
def test_entry_points_that_are_not_there(maker, codes, field, told, language):
    maker.definition()
    for code in codes:
        maker.solution(code=code, language=language)
        finding = only(maker, "solutions")
        assert (finding.field, finding.severity.value) == (field, "warning")
        assert told in finding.message


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


def test_what_is_gone_is_told_once(maker):
    maker.sound()
    for uuid in ("gone", "gone too", "gone too"):
        maker.trace("lost", uuid=uuid)
    solution, workload = findings(maker, "traces")
    assert (solution.line, solution.severity.value, solution.field) == (5, "warning", "solution")
    assert "one of 3 traces" in solution.message
    assert (workload.severity.value, workload.field) == ("warning", "workload.uuid")
    assert "2 of the 4 workloads" in workload.message
    assert "the first is gone" in workload.message


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


@pytest.mark.parametrize(
    ("content", "field", "severity", "words"),
    [
        ({"y": ("F32", [16])}, ".tensor_key", "error", "no tensor 'x'; it has y"),
        ({"x": ("F32", [17])}, ".shape", "error", "shape [17], but [16] is declared"),
        ({"x": ("F32", [4, 4])}, ".shape", "error", "shape [4, 4]"),
        ({"x": ("BF16", [16])}, ".dtype", "error", "has dtype bfloat16, but float32"),
        ("", ".path", "error", "not a safetensors file"),
        ("\x02" + "\0" * 7 + "[]", ".path", "error", "not a safetensors file"),
        (POINTER, ".path", "warning", "it is a Git LFS pointer"),
    ],
)
def test_tensor_files_that_do_not_fit(defined, content, field, severity, words):
    (defined.raw if isinstance(content, str) else defined.blob)(PATH, content)
    defined.from_blob(PATH)
    finding = only(defined, "blobs")
    assert (finding.field, finding.line) == (f"workload.inputs.x{field}", 1)
    assert finding.severity.value == severity
    assert words in finding.message
    assert content != POINTER or "git lfs pull" in finding.hint


def test_a_scalar_may_be_stored_with_any_shape_of_one_element(maker):
    maker.definition(
        inputs={"x": {"shape": None, "dtype": "float32"}},
        outputs={"y": {"shape": None, "dtype": "float32"}},
        axes={},
    )
    maker.blob("one", {"x": ("F32", [1, 1])})
    maker.blob("two", {"x": ("F32", [2])})
    maker.from_blob("one")
    maker.from_blob("two", uuid="w2")
    assert [f.line for f in findings(maker, "blobs")] == [2]


@pytest.mark.parametrize(
    ("stored", "shape", "fits"),
    [("U8", [16], True), ("F4", [16], True), ("F4", [32], True), ("F4", [34], False)],
)
def test_packed_4_bit_floats(maker, stored, shape, fits):
    maker.definition(inputs={"x": {"shape": ["N"], "dtype": "float4_e2m1"}})
    maker.blob(PATH, {"x": (stored, shape)})
    maker.from_blob(PATH)
    assert (findings(maker, "blobs") == []) is fits


def test_the_shape_is_not_judged_when_an_axis_is_missing(defined):
    defined.blob(PATH, {"x": ("F32", [17])})
    spec = {"type": "safetensors", "path": PATH, "tensor_key": "x"}
    defined.workload(axes={}, inputs={"x": spec})
    assert findings(defined, "blobs") == []
    assert len(findings(defined, "workloads")) == 1


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


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("solution", "the definition has solutions but no workloads"),
        ("workload", "the definition has workloads but no solutions"),
    ],
)
def test_one_without_the_other(maker, part, message):
    maker.definition()
    getattr(maker, part)()
    assert only(maker, "benchmark").message == message


@pytest.mark.parametrize(
    ("reference", "takes"),
    [
        ("def run():\n    pass", "0"),
        ("def run(x, y):\n    pass", "2"),
        ("def run(x, y, z=1):\n    pass", "2 to 3"),
        ("def run(x):\n    pass\ndef run():\n    pass", "0"),
        ("def run(x):\n    pass", None),
        ("def run(x, y=2):\n    pass", None),
        ("def run(*inputs):\n    pass", None),
        ("def run(x, *, y=1):\n    pass", None),
        ("import functools\n@functools.cache\ndef run():\n    pass", None),
    ],
)
def test_whether_a_reference_takes_the_inputs(maker, reference, takes):
    maker.definition(reference=reference)
    found = validate_dataset(maker.root).findings
    message = f"run takes {takes} inputs, but 1 are declared"
    told = [("error", "reference", message)] if takes else []
    assert [(one.severity.value, one.field, one.message) for one in found] == told


def test_the_page_has_every_layer_and_check():
    page = Path(__file__).parents[3] / "docs" / "reference" / "validate.md"
    rows = re.findall(r"^\| `(\w+)` \| (`.*?) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    told = {layer: set(re.findall(r"`(\w+)`", checks)) for layer, checks in rows}
    assert told == {layer: set(checks) for layer, checks in known_layers().items()}
