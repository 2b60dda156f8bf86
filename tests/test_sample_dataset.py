"""The bundled sample dataset is what its sources say; `test_demo_end_to_end` runs it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from flashinfer_bench.data import EvaluationStatus, TraceSet
from flashinfer_bench.validate import validate_dataset

REPOSITORY = Path(__file__).resolve().parents[1]
EXAMPLES = REPOSITORY / "examples"
DATASET = EXAMPLES / "sample-dataset"
EXPECTED = json.loads((EXAMPLES / "sources" / "expected.json").read_text(encoding="utf-8"))
KINDS = {(row["language"], row["binding"]) for row in EXPECTED.values()} - {("python", None)}
ROLES = {"baseline", "good", "slow", "wrong", "crash", "no-compile"}


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location(
        "build_sample_dataset", EXAMPLES / "build_sample_dataset.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def trace_set() -> TraceSet:
    return TraceSet.from_path(str(DATASET))


@pytest.fixture
def copied_examples(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLES / "sources", tmp_path / "sources")
    return tmp_path


# ------------------------------------------------------------------------------- the generator


def test_committed_files_are_up_to_date(generator):
    assert generator.stale(EXAMPLES) == []


def test_check_reports_without_writing(generator, copied_examples, capsys):
    assert generator.main(["--check", "--examples", str(copied_examples)]) == 1
    assert "out of date: sample-dataset/definitions/gemm/" in capsys.readouterr().err
    assert not (copied_examples / "sample-dataset").exists()


def test_only_what_has_changed_is_written(generator, copied_examples):
    """What no source makes is removed; traces are spared."""
    generator.write(copied_examples)
    made = copied_examples / "sample-dataset"
    for path in (path for path in made.rglob("*.*") if path.is_file()):
        assert path.read_bytes() == (DATASET / path.relative_to(made)).read_bytes(), path
    left_over, traces = made / "solutions/zoe/old.json", made / "traces/op/mine.jsonl"
    for path in (left_over, traces):
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    source = copied_examples / "sources/gemm_n256_k256/solutions/baseline_gemm.py"
    source.write_text(source.read_text() + "\n# tuned\n")
    assert sorted(generator.write(copied_examples)) == [
        "sample-dataset/solutions/baseline/gemm/gemm_n256_k256/baseline_gemm.json",
        "sample-dataset/solutions/zoe/old.json",
    ]
    assert not left_over.exists()
    assert traces.exists()


def test_no_traces_are_in_the_repository():
    tracked = subprocess.run(
        ["git", "ls-files", "examples/sample-dataset/traces"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert tracked.stdout == ""


# ------------------------------------------------------------------------------- what it holds


def test_nothing_is_wrong_with_it():
    """But for sources that are meant not to compile."""
    found = validate_dataset(DATASET)
    wrong = {one.path.stem for one in (*found.errors, *found.warnings)}
    assert {EXPECTED[name]["role"] for name in wrong} <= {"no-compile"}


def test_definitions_cover_the_promised_ground(trace_set):
    definitions = trace_set.definitions.values()
    assert len(definitions) >= 7
    assert len({d.op_type for d in definitions}) >= 5
    assert any(len(d.outputs) == 2 for d in definitions)
    assert any(spec.shape is None for d in definitions for spec in d.outputs.values())
    dtypes = {spec.dtype for d in definitions for spec in [*d.inputs.values(), *d.outputs.values()]}
    assert {"float32", "bfloat16", "int32", "int64"} <= dtypes


def test_workloads_use_every_kind_of_input(trace_set):
    assert {2, 3, 4} >= {len(traces) for traces in trace_set.workloads.values()}
    workloads = [trace.workload for traces in trace_set.workloads.values() for trace in traces]
    kinds = {source.type for one in workloads for source in one.inputs.values()}
    assert kinds == {"random", "scalar", "safetensors"}


def test_each_definition_has_a_solution_of_every_role_and_calling_convention(trace_set):
    for name, solutions in trace_set.solutions.items():
        roles = Counter(EXPECTED[solution.name]["role"] for solution in solutions)
        assert set(roles) == ROLES, name
        assert roles["baseline"] == 1, name
        assert [s.author for s in solutions].count("baseline") == 1, name
        assert len({solution.author for solution in solutions}) >= 4, name
        assert {s.spec.destination_passing_style for s in solutions} == {True, False}, name


@pytest.mark.parametrize("kind", sorted(KINDS, key=str), ids=str)
def test_each_language_has_right_and_failing_solutions(kind):
    rows = [row for row in EXPECTED.values() if (row["language"], row["binding"]) == kind]
    right = {row["definition"] for row in rows if set(row["status"].values()) == {"PASSED"}}
    statuses = {status for row in rows for status in row["status"].values()}
    assert len(right) >= 4
    assert {"INCORRECT_NUMERICAL", "RUNTIME_ERROR", "COMPILE_ERROR"} <= statuses


def test_the_languages_are_those_of_the_plugins():
    assert {language for language, _ in KINDS} == {"triton", "cpp", "cuda"}
    assert {binding for language, binding in KINDS if language == "cuda"} == {"tvm-ffi", "torch"}
    assert {binding for language, binding in KINDS if language == "cpp"} == {None, "torch"}


def test_sources_of_several_kinds_and_options_are_packed(trace_set):
    solutions = [one for group in trace_set.solutions.values() for one in group]
    files = [{source.path for source in one.sources} for one in solutions]
    assert {"main.cpp", "kernel.cu", "kernel.cuh"} in files
    assert {"main.cpp", "bf16.h"} in files
    options = [one.spec.compile_options for one in solutions]
    assert [option.cflags for option in options if option] == [["-O3"], ["-O3"]]


def test_the_expected_table_covers_exactly_what_will_run(trace_set):
    pairs = {
        (solution.name, trace.workload.uuid)
        for name, solutions in trace_set.solutions.items()
        for solution in solutions
        for trace in trace_set.workloads[name]
    }
    assert pairs == {(name, uuid) for name, row in EXPECTED.items() for uuid in row["status"]}
    statuses = {status for row in EXPECTED.values() for status in row["status"].values()}
    assert statuses == {status.value for status in EvaluationStatus} - {"TIMEOUT"}
    honest = [row for row in EXPECTED.values() if row["role"] in ("baseline", "good", "slow")]
    assert {status for row in honest for status in row["status"].values()} == {"PASSED"}
