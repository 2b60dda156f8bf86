"""Validating a dataset: layers, what cannot be read, processes; more in ``test_mistakes``."""

from __future__ import annotations

import os

import pytest

from fib_tests.dataset_maker import DatasetMaker
from fib_tests.findings import findings
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.validate import known_checks, known_layers, validate_dataset

LAYERS = known_layers()


def test_a_sound_dataset_has_no_findings_and_stays_as_it_is(maker):
    root = maker.sound().root
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    report = validate_dataset(root)
    assert report.findings == ()
    assert report.counts == {"definitions": 1, "solutions": 2, "workloads": 2, "traces": 4}
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_the_rest_of_a_broken_file_is_still_checked(maker):
    maker.sound()
    path = maker.root / "workloads/op/double.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "not json", lines[1]]) + "\n")
    report = validate_dataset(maker.root)
    assert [(f.line, f.check) for f in report.findings] == [(2, "workloads")]
    assert report.counts["workloads"] == 2


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


def said(maker, check):
    """Return the beginning of what a check finds: severity, place and message."""
    found = findings(maker, check)
    return [f"{f.severity.value} {f.where}: {f.message}".split(";")[0] for f in found]


def test_the_folders(maker):
    maker.solution()
    assert said(maker, "layout") == ["error definitions: the folder is missing"]
    maker.definition()
    (maker.root / "traces").write_text("")
    assert said(maker, "layout") == ["error traces: must be a folder"]


def test_files_that_no_reader_looks_at(maker):
    maker.sound()
    for path in ("definitions/op/notes.txt", "traces/op/old.jsonl.gz", "definitions/.DS_Store"):
        maker.raw(path, "")
    assert said(maker, "layout") == [
        "warning definitions/op/notes.txt: ignored: only files ending in .json are read in "
        "definitions",
        "warning traces/op/old.jsonl.gz: ignored: only files ending in .jsonl and .json are read "
        "in traces",
    ]


def test_links_that_lead_out_of_the_dataset(maker, tmp_path):
    double = maker.sound().root / "definitions/op/double.json"
    (tmp_path / "elsewhere.json").write_text(double.read_text().replace('"double"', '"linked"'))
    double.with_name("linked.json").symlink_to(tmp_path / "elsewhere.json")
    double.with_name("inside.json").symlink_to("double.json")
    assert said(maker, "layout") == [
        "warning definitions/op/linked.json: the link leads out of the dataset"
    ]


def test_names_of_definitions(maker):
    path = maker.definition()
    maker.raw("definitions/op/triple.json", path.read_text())
    assert said(maker, "definitions") == [
        "error definitions/op/triple.json: name: another definition is named 'double': "
        "definitions/op/double.json",
        "warning definitions/op/triple.json: name: the file should be named double.json",
    ]


def test_solutions_and_their_names(maker):
    maker.sound()
    maker.solution("alice_double", author="bob")
    maker.solution("lost", definition="triple", file="other")
    other = "solutions/alice/op/triple/other.json"
    assert said(maker, "solutions") == [
        f"error {other}: definition: no definition 'triple' in the dataset",
        f"warning {other}: name: the file should be named lost.json",
        "error solutions/bob/op/double/alice_double.json: name: another solution is named "
        "'alice_double': solutions/alice/op/double/alice_double.json",
    ]


def test_workloads_and_their_uuids(maker):
    maker.definition()
    maker.workload("triple", uuid="same")  # that of another definition
    for size in (1, 1, 2):
        maker.workload(uuid="same", axes={"N": size})
    double, triple = (f"workloads/op/{name}.jsonl" for name in ("double", "triple"))
    assert said(maker, "workloads") == [
        f"warning {double}:2: workload.uuid: duplicate of the workload at {double}:1",
        f"error {double}:3: workload.uuid: another workload at {double}:1 has this uuid",
        f"error {triple}:1: definition: no definition 'triple' in the dataset",
    ]


def test_a_trace_of_no_definition(maker):
    maker.sound()
    maker.trace(definition="triple")
    assert said(maker, "traces") == [
        "error traces/op/triple.jsonl:1: definition: no definition 'triple' in the dataset",
        "error traces/op/triple.jsonl:1: solution: 'alice_double' is a solution of 'double', "
        "not of 'triple'",
    ]
