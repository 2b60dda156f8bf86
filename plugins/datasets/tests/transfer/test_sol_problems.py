"""Problem folders of SOL-ExecBench: what comes over, and what is said of the rest."""

from __future__ import annotations

import json

import pytest

from fib_datasets.transfer.importing import import_dataset
from flashinfer_bench.data import Tolerance, TraceSet
from flashinfer_bench.errors import UnsafePathError

DEFINITION = {
    "name": "rope_concat",
    "description": "Rotates and concatenates.",
    "axes": {
        "B": {"type": "var"},
        "H": {"type": "const", "value": 4},
        "BH": {"type": "expr", "expression": "B * H", "description": "rows"},
        "BH1": {"type": "expr", "expression": "BH + 1"},
    },
    "inputs": {
        "x": {"shape": ["BH", "H"], "dtype": "bfloat16"},
        "s": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["BH1", "H"], "dtype": "bfloat16"}},
    "reference": "def run(x, s):\n    return x\n",
    "custom_inputs_entrypoint": "make_inputs",
    "hf_id": "some/model",
}
INPUTS = {"x": {"type": "random"}, "s": {"type": "scalar", "value": 0.5}}
TOLERANCE = {
    "max_atol": 0.01,
    "max_rtol": 0.02,
    "required_matched_ratio": 0.99,
    "max_error_cap": 1.0,
    "allow_negative_inf": True,
}


def workload(uuid="u1", **changes):
    return {"uuid": uuid, "axes": {"B": 3}, "inputs": INPUTS, **changes}


@pytest.fixture
def problem(new_writer, tmp_path):
    writer = new_writer(tmp_path / "problem")
    writer.json("definition.json", DEFINITION)
    writer.lines("workload.jsonl", workload())
    return writer


def imported(problem, tmp_path):
    done = import_dataset(problem.root, tmp_path / "new")
    return done, TraceSet.from_path(tmp_path / "new")


def test_a_problem_becomes_a_definition_and_workloads(problem, tmp_path):
    done, new = imported(problem, tmp_path)
    assert done.left_out == ()
    definition = new.definitions["rope_concat"]
    assert definition.op_type == "sol_execbench"
    assert definition.var_axes == ["B", "BH", "BH1"]
    assert definition.axes["BH"].description == "rows"
    assert definition.constraints == ["BH == B * H", "BH1 == BH + 1"]
    (trace,) = new.workloads["rope_concat"]
    assert trace.workload.axes == {"B": 3, "BH": 12, "BH1": 13}
    assert trace.workload.uuid == "u1"
    assert definition.get_input_shapes(trace.workload.axes) == [(12, 4), None]


def test_what_was_lost_is_noted(problem, tmp_path):
    problem.lines("workload.jsonl", workload(tolerance=TOLERANCE, checks=["no_nan"]))
    done, new = imported(problem, tmp_path)
    assert done.notes == (
        f"{problem.root}/definition.json: not imported: custom_inputs_entrypoint, hf_id",
        f"{problem.root}/workload.jsonl: not imported: checks",
        f"{problem.root}/workload.jsonl: not imported: allow_negative_inf",
    )
    (trace,) = new.workloads["rope_concat"]
    assert trace.workload.tolerance == Tolerance(
        atol=0.01, rtol=0.02, required_matched_ratio=0.99, max_error_cap=1.0
    )


def test_workloads_that_cannot_come_over(problem, tmp_path):
    problem.lines(
        "workload.jsonl",
        workload("custom", inputs={**INPUTS, "x": {"type": "custom"}}),
        workload("made", inputs={**INPUTS, "x": {"type": "generated", "seed": 1}}),
        workload("const", axes={"B": 3, "H": 5}),
        workload("computed", axes={"B": 3, "BH": 11}),
        workload("incomplete", axes={}),
        [],
        {"uuid": "empty"},
        workload("fine", axes={"B": 2, "H": 4, "BH": 8}),
    )
    done, new = imported(problem, tmp_path)
    assert [trace.workload.uuid for trace in new.workloads["rope_concat"]] == ["fine"]
    assert new.workloads["rope_concat"][0].workload.axes == {"B": 2, "BH": 8, "BH1": 9}
    told = {error.line: (error.field, error.message) for error in done.left_out}
    assert sorted(told) == [1, 2, 3, 4, 5, 6, 7]
    assert told[1] == (
        "inputs.x",
        "inputs of type 'custom' are not supported; allowed are random, scalar, safetensors",
    )
    assert told[3] == ("axes", "'H' is 5, but the definition says 4")
    assert told[4] == ("axes", "'BH' is 11, but B * H is 12")
    assert told[5] == ("axes", "cannot compute 'B * H': it needs B")


@pytest.mark.parametrize("path", ["../secret.py", "/etc/x.py"])
def test_a_reference_cannot_be_taken_from_elsewhere(problem, tmp_path, path):
    (tmp_path / "secret.py").write_text("def run(): pass\n")
    problem.json("definition.json", {**DEFINITION, "reference": path})
    (tmp_path / "other").mkdir()
    from fib_datasets.transfer.sources import read_source

    (error,) = read_source(problem.root).left_out
    assert isinstance(error, UnsafePathError)
    assert "is outside the folder" in error.message


def test_tensor_files_beside_the_problem_or_above(new_writer, tmp_path):
    root = new_writer(tmp_path / "problems")
    spec = {"type": "safetensors", "tensor_key": "x"}
    for name, path in (("one", "data/x.safetensors"), ("two", "two/x.safetensors")):
        root.json(f"L1/{name}/definition.json", {**DEFINITION, "name": name})
        inputs = {**INPUTS, "x": {**spec, "path": path}}
        root.lines(f"L1/{name}/workload.jsonl", workload(name, inputs=inputs))
    root.text("L1/one/data/x.safetensors", b"1")
    root.text("L1/two/x.safetensors", b"2")
    done, new = imported(root, tmp_path)
    assert done.added["definitions"] == 2
    assert done.missing_blobs == ()
    for name, content in (("one", b"1"), ("two", b"2")):
        path = new.workloads[name][0].workload.inputs["x"].path
        assert path == f"blob/workloads/sol_execbench/{name}/x.safetensors"
        assert (tmp_path / "new" / path).read_bytes() == content


def test_solutions(problem, tmp_path):
    spec = {"languages": ["pytorch"], "target_hardware": ["B200"], "entry_point": "a.py::run"}
    record = {
        "name": "fast",
        "author": "me",
        "spec": spec,
        "sources": [{"path": "a.py"}],
        "score": 0.9,
    }
    problem.json("solution.json", record)
    problem.text("a.py", "def run(x, s):\n    return x\n")
    two = {**record, "name": "two", "spec": {**spec, "languages": ["triton", "cuda_cpp"]}}
    problem.json("solutions/two.json", two)
    problem.json("solutions/deep/gone.json", {**record, "name": "gone"})
    problem.json("solutions/same.json", {**record, "sources": [{"path": "a.py", "content": "x"}]})
    problem.json("solutions/evil.json", {**record, "sources": [{"path": "../../../etc/passwd"}]})
    problem.json("solutions/not.json", [1])
    done, new = imported(problem, tmp_path)
    (solution,) = new.solutions["rope_concat"]
    assert solution.spec.language == "python"
    assert solution.sources[0].content == "def run(x, s):\n    return x\n"
    assert f"{problem.root}/solution.json: not imported: score" in done.notes
    told = {error.path.name: error.message for error in done.left_out}
    assert set(told) == {"two.json", "gone.json", "same.json", "solutions", "not.json"}
    assert "one is allowed" in told["two.json"]
    assert "another solution is named 'fast'" in told["same.json"]
    assert "is outside" in told["solutions"]


def test_one_broken_problem_does_not_take_the_rest_away(new_writer, tmp_path):
    root = new_writer(tmp_path / "problems")
    for name, text in (
        ("a", json.dumps({**DEFINITION, "name": "a"})),
        ("b", "{"),
        ("c", "[]"),
        ("d", json.dumps({**DEFINITION, "name": "a"})),
        ("e", json.dumps({**DEFINITION, "name": "e", "axes": []})),
        ("f", json.dumps({**DEFINITION, "name": "f", "reference": "ref.py"})),
        ("g", json.dumps({**DEFINITION, "name": "g", "constraints": 5})),
    ):
        root.text(f"{name}/definition.json", text)
        root.lines(f"{name}/workload.jsonl", workload())
    root.text("f/ref.py", b"\xff")
    done, new = imported(root, tmp_path)
    assert list(new.definitions) == ["a"]
    assert [error.path.parent.name for error in done.left_out] == ["b", "c", "d", "e", "f", "g"]
