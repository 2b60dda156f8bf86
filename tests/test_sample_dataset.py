"""The bundled sample dataset is what its sources say, and its solutions do what they should."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from flashinfer_bench.data import EvaluationStatus, TraceSet

REPOSITORY = Path(__file__).resolve().parents[1]
EXAMPLES = REPOSITORY / "examples"
DATASET = EXAMPLES / "sample-dataset"
EXPECTED = json.loads((EXAMPLES / "sources" / "expected.json").read_text(encoding="utf-8"))
# Languages other than Python are checked by a real run, where their compilers are.
PYTHON = {name: row for name, row in EXPECTED.items() if row["language"] == "python"}
KINDS = {(row["language"], row["binding"]) for row in EXPECTED.values()} - {("python", None)}
ROLES = ["baseline", "good", "slow", "wrong", "crash", "no-compile"]


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


@pytest.fixture(scope="module")
def verdicts(once) -> dict[str, dict[str, str]]:
    def fill(folder: Path) -> None:
        script = Path(__file__).parent / "support" / "agreement.py"
        with (folder / "verdicts.json").open("w") as stdout:
            subprocess.run([sys.executable, script, DATASET], stdout=stdout, check=True)

    return json.loads((once("sample-verdicts", fill) / "verdicts.json").read_text())


@pytest.fixture
def copied_examples(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLES / "sources", tmp_path / "sources")
    return tmp_path


# ------------------------------------------------------------------------------- the generator


def test_committed_files_are_up_to_date(generator):
    assert generator.stale(EXAMPLES) == []


def test_two_runs_give_the_same_bytes(generator):
    assert generator.render(EXAMPLES) == generator.render(EXAMPLES)


def test_check_reports_without_writing(generator, copied_examples, capsys):
    assert generator.main(["--check", "--examples", str(copied_examples)]) == 1
    assert "out of date: sample-dataset/definitions/gemm/" in capsys.readouterr().err
    assert not (copied_examples / "sample-dataset").exists()


def test_write_makes_the_committed_dataset_from_the_sources(generator, copied_examples):
    generator.write(copied_examples)
    made = copied_examples / "sample-dataset"
    files = {path.relative_to(made): path.read_bytes() for path in made.rglob("*.*")}
    for path, content in files.items():
        assert content == (DATASET / path).read_bytes(), path


def test_write_removes_what_no_source_makes_and_spares_traces(generator, copied_examples):
    generator.write(copied_examples)
    left_over = copied_examples / "sample-dataset" / "solutions" / "zoe" / "old.json"
    traces = copied_examples / "sample-dataset" / "traces" / "op" / "mine.jsonl"
    for path in (left_over, traces):
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    assert generator.write(copied_examples) == ["sample-dataset/solutions/zoe/old.json"]
    assert not left_over.exists()
    assert traces.exists()


def test_a_changed_source_changes_only_its_own_record(generator, copied_examples):
    generator.write(copied_examples)
    source = copied_examples / "sources" / "gemm_n256_k256" / "solutions" / "baseline_gemm.py"
    source.write_text(source.read_text() + "\n# tuned\n")
    assert generator.write(copied_examples) == [
        "sample-dataset/solutions/baseline/gemm/gemm_n256_k256/baseline_gemm.json"
    ]


def test_every_source_file_is_packed(generator):
    packed = b"".join(generator.render(EXAMPLES).values())
    for path in (EXAMPLES / "sources").glob("*/solutions/**/*.*"):
        if path.is_file() and "__pycache__" not in path.parts:
            first_line = json.dumps(path.read_text(encoding="utf-8").split("\n")[0])[1:-1]
            assert first_line.encode() in packed, path


def test_no_traces_are_in_the_repository():
    tracked = subprocess.run(
        ["git", "ls-files", "examples/sample-dataset/traces"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert tracked.stdout == ""


# ------------------------------------------------------------------------------- what it holds


def test_definitions_cover_the_promised_ground(trace_set):
    definitions = trace_set.definitions.values()
    assert len(definitions) >= 7
    assert len({d.op_type for d in definitions}) >= 5
    assert any(len(d.outputs) == 2 for d in definitions)
    assert any(spec.shape is None for d in definitions for spec in d.outputs.values())
    dtypes = {spec.dtype for d in definitions for spec in [*d.inputs.values(), *d.outputs.values()]}
    assert {"float32", "bfloat16", "int32", "int64"} <= dtypes


def test_definitions_lie_where_the_layout_wants_them(trace_set):
    for name, definition in trace_set.definitions.items():
        assert (DATASET / "definitions" / definition.op_type / f"{name}.json").is_file()
        assert (DATASET / "workloads" / definition.op_type / f"{name}.jsonl").is_file()


def test_workloads_use_every_kind_of_input(trace_set):
    kinds = Counter()
    for name, traces in trace_set.workloads.items():
        assert 2 <= len(traces) <= 4, name
        for trace in traces:
            assert trace.is_workload_trace()
            kinds.update(source.type for source in trace.workload.inputs.values())
    assert {"random", "scalar", "safetensors"} == set(kinds)


def test_workloads_name_all_inputs_and_variable_axes(trace_set):
    for name, traces in trace_set.workloads.items():
        definition = trace_set.definitions[name]
        for trace in traces:
            assert set(trace.workload.inputs) == set(definition.inputs)
            assert set(trace.workload.axes) == set(definition.var_axes)


def test_workload_ids_are_unique(trace_set):
    ids = [trace.workload.uuid for traces in trace_set.workloads.values() for trace in traces]
    assert len(set(ids)) == len(ids)


def test_blobs_hold_what_the_workloads_say(trace_set):
    safetensors = pytest.importorskip("safetensors")
    for name, traces in trace_set.workloads.items():
        definition = trace_set.definitions[name]
        for trace in traces:
            shapes = definition.get_input_shapes(trace.workload.axes)
            for (tensor, source), shape in zip(trace.workload.inputs.items(), shapes, strict=True):
                if source.type == "safetensors":
                    with safetensors.safe_open(DATASET / source.path, framework="pt") as blob:
                        found = blob.get_slice(source.tensor_key).get_shape()
                    assert tuple(found) == tuple(shape), (name, tensor)


def test_every_blob_is_used(trace_set):
    used = {
        (DATASET / source.path).resolve()
        for traces in trace_set.workloads.values()
        for trace in traces
        for source in trace.workload.inputs.values()
        if source.type == "safetensors"
    }
    assert used == set((DATASET / "blob").rglob("*.safetensors"))


def test_each_definition_has_a_solution_of_every_role(trace_set):
    for name, solutions in trace_set.solutions.items():
        roles = Counter(EXPECTED[solution.name]["role"] for solution in solutions)
        assert set(roles) == set(ROLES), name
        assert roles["baseline"] == 1, name
        assert [s.author for s in solutions].count("baseline") == 1, name
        assert len({solution.author for solution in solutions}) >= 4, name


def test_each_definition_has_both_calling_conventions(trace_set):
    for name, solutions in trace_set.solutions.items():
        assert {s.spec.destination_passing_style for s in solutions} == {True, False}, name


def test_solutions_lie_where_the_layout_wants_them(trace_set):
    for name, solutions in trace_set.solutions.items():
        op_type = trace_set.definitions[name].op_type
        for solution in solutions:
            folder = DATASET / "solutions" / solution.author / op_type / name
            assert (folder / f"{solution.name}.json").is_file()


def test_one_solution_has_several_files(trace_set):
    assert any(len(s.sources) > 1 for group in trace_set.solutions.values() for s in group)


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


def test_sources_of_several_kinds_make_one_solution(trace_set):
    files = [{source.path for source in s.sources} for g in trace_set.solutions.values() for s in g]
    assert {"main.cpp", "kernel.cu", "kernel.cuh"} in files
    assert {"main.cpp", "bf16.h"} in files


def test_compile_options_are_packed(trace_set):
    options = [s.spec.compile_options for g in trace_set.solutions.values() for s in g]
    assert [option.cflags for option in options if option] == [["-O3"], ["-O3"]]


def test_expected_table_covers_exactly_what_will_run(trace_set):
    pairs = {
        (solution.name, trace.workload.uuid)
        for name, solutions in trace_set.solutions.items()
        for solution in solutions
        for trace in trace_set.workloads[name]
    }
    assert pairs == {(name, uuid) for name, row in EXPECTED.items() for uuid in row["status"]}


def test_expected_statuses_are_statuses_and_varied():
    statuses = {status for row in EXPECTED.values() for status in row["status"].values()}
    assert statuses == {status.value for status in EvaluationStatus} - {"TIMEOUT"}


@pytest.mark.parametrize("role", ["baseline", "good", "slow"])
def test_honest_solutions_are_expected_to_pass(role):
    rows = [row for row in EXPECTED.values() if row["role"] == role]
    assert rows
    assert {status for row in rows for status in row["status"].values()} == {"PASSED"}


# ------------------------------------------------------------------------------- what it does


def test_references_return_what_is_declared(trace_set, verdicts):
    for name in trace_set.definitions:
        assert set(verdicts[name].values()) == {"agrees"}, name


def test_verdicts_cover_every_solution(verdicts):
    assert set(PYTHON) <= set(verdicts)


@pytest.mark.parametrize("solution", [n for n, row in PYTHON.items() if row["role"] in ROLES[:3]])
def test_honest_solution_agrees_with_its_reference(solution, verdicts):
    assert set(verdicts[solution].values()) == {"agrees"}


@pytest.mark.parametrize("solution", [n for n, row in PYTHON.items() if row["role"] in ROLES[3:]])
def test_dishonest_solution_disagrees_where_it_should(solution, verdicts):
    for uuid, status in EXPECTED[solution]["status"].items():
        verdict = verdicts[solution][uuid]
        assert (verdict == "agrees") == (status == "PASSED"), verdict
    assert (
        "PASSED" not in set(EXPECTED[solution]["status"].values())
        or len(set(EXPECTED[solution]["status"].values())) == 2
    )


@pytest.mark.parametrize("solution", [n for n, row in PYTHON.items() if row["role"] == "wrong"])
def test_wrong_solution_is_wrong_in_the_announced_way(solution, verdicts):
    words = {
        "INCORRECT_NUMERICAL": "values of",
        "INCORRECT_SHAPE": "has shape",
        "INCORRECT_DTYPE": "has dtype",
        "PASSED": "agrees",
    }
    for uuid, status in EXPECTED[solution]["status"].items():
        assert words[status] in verdicts[solution][uuid]


@pytest.mark.parametrize("role", ["crash", "no-compile"])
def test_failing_solutions_fail_in_different_ways(role, verdicts):
    rows = {name: row for name, row in PYTHON.items() if row["role"] == role}
    endings = {next(iter(verdicts[name].values())).split(":")[1] for name in rows}
    assert len(endings) >= 3, endings


def test_some_crashes_kill_the_process(verdicts):
    crashes = [name for name, row in PYTHON.items() if row["role"] == "crash"]
    died = [name for name in crashes if "died" in next(iter(verdicts[name].values()))]
    assert len(died) >= 3
    assert len(died) < len(crashes)
