"""What the checks of this plugin find: tensor files, baselines, what a benchmark lacks."""

from __future__ import annotations

import pytest

from flashinfer_bench.validate import validate_dataset

PATH = "blob/workloads/op/double/x.safetensors"


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


@pytest.mark.parametrize(
    ("tensors", "field", "words"),
    [
        ({"y": ("F32", [16])}, "workload.inputs.x.tensor_key", "no tensor 'x'; it has y"),
        ({"x": ("F32", [17])}, "workload.inputs.x.shape", "shape [17], but [16] is declared"),
        ({"x": ("F32", [4, 4])}, "workload.inputs.x.shape", "shape [4, 4]"),
        ({"x": ("BF16", [16])}, "workload.inputs.x.dtype", "holds bfloat16, but float32"),
    ],
)
def test_wrong_key_shape_or_dtype(defined, tensors, field, words):
    defined.blob(PATH, tensors)
    defined.from_blob(PATH)
    finding = only(defined, "blobs")
    assert (finding.field, finding.severity.value, finding.line) == (field, "error", 1)
    assert words in finding.message


@pytest.mark.parametrize("content", ["", "\x02" + "\0" * 7 + "[]"])
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


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("solution", "it has solutions and no workload to run them on"),
        ("workload", "it has workloads and no solution to run on them"),
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
