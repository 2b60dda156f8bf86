"""Workloads, tensor files and traces."""

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


# ---------------------------------------------------------------------------------- workloads


def test_a_workload_of_no_definition(defined):
    defined.workload("triple")
    finding = only(defined, "workloads")
    assert (finding.line, finding.field, finding.severity.value) == (1, "definition", "error")


@pytest.mark.parametrize(
    ("axes", "field", "severity"),
    [
        ({}, "workload.axes.N", "error"),
        ({"N": 4, "M": 2}, "workload.axes.M", "warning"),
        ({"N": 0}, "workload.axes.N", "warning"),
    ],
)
def test_axes(defined, axes, field, severity):
    defined.workload(axes=axes)
    finding = only(defined, "workloads")
    assert (finding.field, finding.severity.value) == (field, severity)


@pytest.mark.parametrize(("size", "severities"), [(8, []), (9, ["error"])])
def test_constant_axes_may_be_repeated_but_not_changed(maker, size, severities):
    maker.definition(axes={"N": {"type": "var"}, "K": {"type": "const", "value": 8}})
    maker.workload(axes={"N": 4, "K": size})
    assert [f.severity.value for f in findings(maker, "workloads")] == severities


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


def test_a_broken_constraint_tells_the_values(maker):
    maker.definition(constraints=["N >= 100"])
    maker.workload(axes={"N": 16})
    assert only(maker, "workloads").message == "the constraint 'N >= 100' does not hold for N=16"


@pytest.mark.parametrize(
    ("inputs", "field", "severity"),
    [
        ({}, "workload.inputs.x", "error"),
        ({"x": {"type": "random"}, "z": {"type": "random"}}, "workload.inputs.z", "warning"),
        ({"x": {"type": "scalar", "value": 3}}, "workload.inputs.x", "error"),
    ],
)
def test_inputs(defined, inputs, field, severity):
    defined.workload(inputs=inputs)
    finding = only(defined, "workloads")
    assert (finding.field, finding.severity.value) == (field, severity)


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
    defined.workload(uuid="same")
    defined.workload(uuid="same")
    finding = only(defined, "workloads")
    assert (finding.line, finding.severity.value) == (2, "warning")
    assert "workloads/op/double.jsonl:1" in finding.message


def test_two_workloads_of_one_uuid(defined):
    defined.workload(uuid="same", axes={"N": 1})
    defined.workload(uuid="same", axes={"N": 2})
    finding = only(defined, "workloads")
    assert (finding.field, finding.severity.value) == ("workload.uuid", "error")


def test_the_same_uuid_for_two_definitions_is_fine(defined):
    defined.definition("triple")
    defined.workload(uuid="same")
    defined.workload("triple", uuid="same")
    assert findings(defined, "workloads") == []


# -------------------------------------------------------------------------------------- blobs

PATH = "blob/workloads/op/double/x.safetensors"


def test_a_fitting_file(defined):
    defined.blob(PATH, {"x": ("F32", [16])})
    defined.from_blob(f"./{PATH}")
    assert validate_dataset(defined.root).findings == ()


@pytest.mark.parametrize(
    ("tensors", "field", "words"),
    [
        ({"y": ("F32", [16])}, "workload.inputs.x.tensor_key", "no tensor 'x'; it has y"),
        ({"x": ("F32", [17])}, "workload.inputs.x.shape", "shape [17], but [16] is declared"),
        ({"x": ("F32", [4, 4])}, "workload.inputs.x.shape", "shape [4, 4]"),
        ({"x": ("BF16", [16])}, "workload.inputs.x.dtype", "holds bfloat16, but float32"),
        ({"x": ("U8", [16])}, "workload.inputs.x.dtype", "holds U8"),
    ],
)
def test_wrong_key_shape_or_dtype(defined, tensors, field, words):
    defined.blob(PATH, tensors)
    defined.from_blob(PATH)
    finding = only(defined, "blobs")
    assert (finding.field, finding.severity.value, finding.line) == (field, "error", 1)
    assert words in finding.message


def test_everything_wrong_with_a_tensor_is_told_at_once(defined):
    defined.blob(PATH, {"x": ("BF16", [17])})
    defined.from_blob(PATH)
    fields = [f.field for f in findings(defined, "blobs")]
    assert fields == ["workload.inputs.x.dtype", "workload.inputs.x.shape"]


def test_a_missing_file(defined):
    defined.from_blob(PATH)
    finding = only(defined, "blobs")
    assert finding.severity.value == "error"
    assert "does not exist" in finding.message


@pytest.mark.parametrize("content", ["", "1234567", "12345678{}", "\x02" + "\0" * 7 + "[]"])
def test_a_file_that_is_no_tensor_file(defined, content):
    defined.raw(PATH, content)
    defined.from_blob(PATH)
    assert "not a safetensors file" in only(defined, "blobs").message


def test_a_git_lfs_pointer_is_a_warning_with_a_remedy(defined):
    defined.raw(PATH, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    defined.from_blob(PATH)
    finding = only(defined, "blobs")
    assert finding.severity.value == "warning"
    assert "git lfs pull" in (finding.hint or "")


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside.safetensors", "blob/../../x"])
def test_a_path_outside_the_dataset_is_never_opened(defined, path):
    defined.from_blob(path)
    finding = only(defined, "blobs")
    assert finding.field == "workload.inputs.x.path"
    assert "dataset" in finding.message


def test_a_link_to_the_outside_is_not_followed(defined, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    link = defined.root / "blob/x.safetensors"
    link.parent.mkdir()
    link.symlink_to(secret)
    defined.from_blob("blob/x.safetensors")
    assert "leads out of the dataset" in only(defined, "blobs").message


def test_each_file_is_opened_once(defined, monkeypatch):
    from flashinfer_bench.validate.checks import blobs

    opened = []
    original = blobs.read_safetensors_header
    monkeypatch.setattr(
        blobs, "read_safetensors_header", lambda path: opened.append(path) or original(path)
    )
    defined.blob(PATH, {"x": ("F32", [17])})
    for index in range(5):
        defined.from_blob(PATH, uuid=f"w{index}")
    assert len(findings(defined, "blobs")) == 5
    assert len(opened) == 1


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
    [("U8", [16], True), ("F4", [16], True), ("F4", [32], True), ("F4", [33], False)],
)
def test_packed_4_bit_floats(maker, stored, shape, fits):
    maker.definition(inputs={"x": {"shape": ["N"], "dtype": "float4_e2m1"}})
    shape = shape if shape != [33] else [34]
    maker.blob(PATH, {"x": (stored, shape)})
    maker.from_blob(PATH)
    assert (findings(maker, "blobs") == []) is fits


def test_the_shape_is_not_judged_when_an_axis_is_missing(defined):
    defined.blob(PATH, {"x": ("F32", [17])})
    spec = {"type": "safetensors", "path": PATH, "tensor_key": "x"}
    defined.workload(axes={}, inputs={"x": spec})
    assert findings(defined, "blobs") == []
    assert len(findings(defined, "workloads")) == 1


# ------------------------------------------------------------------------------------- traces


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
    ],
)
def test_impossible_numbers(maker, changes, field, severity):
    maker.sound()
    maker.trace(**changes)
    finding = only(maker, "traces")
    assert (finding.field, finding.severity.value) == (field, severity)


@pytest.mark.parametrize(
    "changes",
    [{"speedup": 2.01}, {"reference_ms": 0.0, "speedup": 0.0}, {"status": "TIMEOUT"}],
)
def test_possible_numbers(maker, changes):
    maker.sound()
    maker.trace(**changes)
    assert findings(maker, "traces") == []
