"""Validating a dataset: reports, layers, what cannot be read, and several processes."""

from __future__ import annotations

import os

import pytest

from fib_tests.dataset_maker import DatasetMaker
from fib_tests.findings import findings, only
from flashinfer_bench.errors import CapabilityError, DatasetNotFoundError, SelectionError
from flashinfer_bench.validate import Severity, known_checks, known_layers, validate_dataset

LAYERS = known_layers()


def test_a_sound_dataset_has_no_findings_and_stays_as_it_is(maker):
    root = maker.sound().root
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    report = validate_dataset(root)
    assert report.findings == ()
    assert report.counts == {"definitions": 1, "solutions": 2, "workloads": 2, "traces": 4}
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_what_is_no_dataset(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="does not exist"):
        validate_dataset(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetNotFoundError, match="not a folder"):
        validate_dataset(tmp_path / "file")
    with pytest.raises(SelectionError, match="is empty"):
        validate_dataset(tmp_path)


def test_unparsable_json_names_file_and_line(maker):
    maker.sound()
    maker.raw("definitions/op/broken.json", '{\n  "name": "broken",\n  oops\n}')
    maker.raw("solutions/x/broken.json", "[1, 2")
    with (maker.root / "traces/op/double.jsonl").open("a") as file:
        file.write('{"definition": }\n')
    found = {(f.check, str(f.path), f.line) for f in validate_dataset(maker.root).errors}
    assert ("definitions", "definitions/op/broken.json", 3) in found
    assert ("traces", "traces/op/double.jsonl", 5) in found
    assert any(path == "solutions/x/broken.json" for _, path, _ in found)


def test_the_rest_of_a_broken_file_is_still_checked(maker):
    maker.sound()
    path = maker.root / "workloads/op/double.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "not json", lines[1]]) + "\n")
    report = validate_dataset(maker.root)
    assert [(f.line, f.check) for f in report.findings] == [(2, "workloads")]
    assert report.counts["workloads"] == 2


def test_a_wrong_field_is_named(maker):
    maker.sound()
    maker.definition("negative", axes={"N": {"type": "const", "value": -1}})
    (finding,) = validate_dataset(maker.root).errors
    assert finding.field == "axes.N.value"
    assert finding.severity is Severity.ERROR
    assert finding.where == "definitions/op/negative.json: axes.N.value"


def test_an_unfinished_last_line_is_a_warning(maker):
    maker.sound()
    path = maker.root / "traces/op/double.jsonl"
    whole = path.read_text()
    path.write_text(whole + whole.splitlines()[0][:100])
    report = validate_dataset(maker.root)
    assert report.errors == ()
    (finding,) = report.warnings
    assert "is unfinished" in finding.message
    assert report.counts["traces"] == 4


def test_a_file_that_cannot_be_read_is_a_finding(maker):
    maker.sound()
    (maker.root / "traces/op/loop.jsonl").symlink_to("loop.jsonl")
    (maker.root / "definitions/op/folder.json").mkdir()
    (maker.root / "solutions/gone.json").symlink_to("nowhere.json")
    report = validate_dataset(maker.root)
    nowhere = [str(f.path) for f in report.errors if "broken link" in f.message]
    assert nowhere == ["solutions/gone.json", "traces/op/loop.jsonl"]
    assert report.counts["solutions"] == 2


def test_a_folder_that_cannot_be_listed_is_a_finding(maker, monkeypatch):
    maker.sound()
    original = os.scandir

    def refuse(folder):
        if str(folder).endswith("alice"):
            raise PermissionError(13, "Permission denied", folder)
        return original(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    report = validate_dataset(maker.root)
    assert (str(report.errors[0].path), report.errors[0].message) == (
        "solutions/alice",
        "cannot be listed: Permission denied",
    )
    assert report.counts["traces"] == 4


def test_findings_are_in_the_order_of_the_checks_then_of_place(maker):
    maker.sound()
    maker.raw("definitions/notes.txt", "")
    path = maker.definition("triple")
    path.rename(path.with_name("other.json"))
    maker.solution("lost_b", definition="lost")
    maker.solution("lost_a", definition="lost")
    maker.workload(uuid="w2")
    maker.workload(uuid="w1")
    found = [(f.check, str(f.path), f.line or 0) for f in validate_dataset(maker.root).findings]
    assert found == sorted(found, key=lambda f: (list(known_checks()).index(f[0]), f[1], f[2]))
    assert {check for check, _, _ in found} == {"layout", "definitions", "solutions", "workloads"}


# --------------------------------------------------------------------------------------- layers


@pytest.fixture(scope="module")
def broken_everywhere(tmp_path_factory):
    maker = DatasetMaker(tmp_path_factory.mktemp("broken"))
    maker.sound()
    maker.raw("definitions/notes.txt", "")
    maker.raw("definitions/op/broken.json", "{")
    maker.solution("lost", definition="lost")
    maker.workload(uuid="w9", axes={})
    maker.trace("gone")
    return maker.root


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_has_the_findings_of_its_checks(broken_everywhere, layer):
    everything = validate_dataset(broken_everywhere).findings
    report = validate_dataset(broken_everywhere, [layer])
    assert report.findings == tuple(f for f in everything if f.check in LAYERS[layer])
    assert report.layers == (layer,)
    # Records are read only where they are needed.
    assert ("traces" in report.counts) is (layer not in ("layout", "definition", "solution"))


# ---------------------------------------------------------------------------- several processes


def test_two_processes_find_what_one_finds(maker):
    """Facts that cross files: uuids, workloads, solutions, baselines, blobs."""
    maker.sound()
    maker.definition("triple", op_type="gemm")
    maker.solution("bob_triple", definition="triple", author="bob")
    maker.solution("lost", definition="lost")
    maker.from_blob("blob/none.safetensors", uuid="w3")
    maker.workload(uuid="w1", axes={"N": 99}, folder="workloads/more")
    maker.workload(uuid="w5", folder="traces/workloads")
    for name in ("gone", "gone", "alice_double"):
        maker.trace(name, uuid="w5")
    maker.trace("gone", uuid="w6")
    path = maker.root / "traces/op/double.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]))
    for number, line in enumerate(lines[5:]):
        path.with_name(f"part{number}.jsonl").write_bytes(line + b"broken\n" + line[:50])
    one, two = (validate_dataset(maker.root, jobs=jobs) for jobs in (1, 2))
    assert one.findings
    assert two == one


def test_a_killed_process_is_told(maker, tmp_path, monkeypatch):
    maker.sound()
    (tmp_path / "block").mkdir()
    (tmp_path / "block/sitecustomize.py").write_text(
        "import os, sys\nif 'spawn_main' in str(sys.orig_argv): os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "block"), prepend=os.pathsep)
    with pytest.raises(CapabilityError, match="was killed") as caught:
        validate_dataset(maker.root, jobs=2)
    assert "--jobs 1" in caught.value.hint


# -------------------------------------------------------------------------------------- the checks


def test_definitions_must_be_there(maker):
    maker.solution()
    finding = only(maker, "layout")
    assert finding.severity.value == "error"
    assert "missing" in finding.message


def test_a_file_in_place_of_a_folder(maker):
    maker.definition()
    (maker.root / "traces").write_text("")
    assert only(maker, "layout").message == "must be a folder"


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
    assert "another definition is named 'double'" in error.message
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
    assert "another solution is named 'alice_double'" in twice.message
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
