"""Several datasets into one folder: tensor files that fit together, and never half of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from flashinfer_bench.data import TraceSet, export_trace_set, merge_trace_sets
from flashinfer_bench.data.merge import merge_datasets
from flashinfer_bench.errors import ConfigError, ConflictError, StorageError

NAME = "gemm_n8_k4"
BLOB = "blob/workloads/gemm/x.safetensors"


@pytest.fixture
def two(new_writer, make, add_blob, tmp_path):
    """Two datasets that hold a tensor file of one name each, and a workload of it."""
    writers = []
    for name in ("one", "two"):
        writer = new_writer(tmp_path / name)
        writer.json("definitions/d.json", make.definition_record())
        add_blob(writer, make, name, f"./{BLOB}")
        writer.text(BLOB, f"tensors of {name}")
        writers.append(writer)
    return writers


def merged(two, out, **options):
    merge_datasets([TraceSet.from_path(one.root) for one in two], out, **options)
    return TraceSet.from_path(out)


def files(root):
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_one_workload_with_different_tensors_is_a_conflict(two, make, add_blob, tmp_path):
    add_blob(two[1], make, "one", f"./{BLOB}")
    with pytest.raises(ConflictError, match="different workloads named 'one'; they differ in inp"):
        merged(two, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    two[1].text(BLOB, "tensors of one")
    assert len(merged(two, tmp_path / "new").workloads[NAME]) == 2


def test_renamed_solutions_keep_their_traces(make):
    sets = []
    for text in ("first", "second", "third", "second"):
        one = make.trace_set(make.trace(uuid=text), authors=())
        one.solutions[NAME] = [make.solution(description=text)]
        sets.append(one)
    new = merge_trace_sets(sets, rename_solutions=True)
    names = {one.description: one.name for one in new.solutions[NAME]}
    assert names["first"] == "alice_v1"
    assert len(set(names.values())) == 3
    assert len(new.solutions[NAME]) == 3
    assert {t.workload.uuid: t.solution for t in new.traces[NAME]} == names
    with pytest.raises(ConflictError, match=r"differ in description[\s\S]*--rename-solutions"):
        merge_trace_sets(sets)


def test_a_failing_merge_leaves_nothing(two, tmp_path, monkeypatch):
    import shutil

    def fail(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", fail)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(StorageError, match="No space left"):
        merged(two, tmp_path / "new")
    assert sorted(tmp_path.iterdir()) == before


def test_a_killed_merge_leaves_no_dataset(dataset, tmp_path):
    """The folder appears with everything in it, or not at all, whenever the process dies."""
    script = """
        import sys
        from flashinfer_bench.data import TraceSet
        from flashinfer_bench.data.merge import merge_datasets
        sets = [TraceSet.from_path(sys.argv[1])]
        print("ready", flush=True)
        for number in range(10_000):
            merge_datasets(sets, f"{sys.argv[2]}/{number}")
    """
    whole = files(dataset)
    for delay in (0.0, 0.013):
        out = tmp_path / f"out{delay}"
        out.mkdir()
        command = [sys.executable, "-c", "\n".join(line[8:] for line in script.split("\n"))]
        with subprocess.Popen([*command, dataset, out], stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(delay)
            process.kill()
        done = [folder for folder in out.iterdir() if not folder.name.startswith(".")]
        assert all(files(folder) == whole for folder in done)


# ----------------------------------------------------------------------------------------- export


def test_the_canonical_layout(with_blobs, writer, make, add_blob, tmp_path):
    add_blob(writer, make, "w4", "blob/missing.safetensors")
    writer.text("blob/workloads/unused.safetensors", b"unused")
    trace_set = TraceSet.from_path(with_blobs)
    out = export_trace_set(trace_set, tmp_path / "out")
    assert files(out) == {
        "definitions/gemm/gemm_n8_k4.json",
        "solutions/alice/gemm/gemm_n8_k4/alice_v1.json",
        "solutions/baseline/gemm/gemm_n8_k4/baseline_v1.json",
        "workloads/gemm/gemm_n8_k4.jsonl",
        "traces/gemm/gemm_n8_k4.jsonl",
        BLOB,
    }
    assert (out / BLOB).read_bytes() == b"tensors"
    again = TraceSet.from_path(out)
    assert again.load_errors == []
    before = json.dumps(trace_set.to_dict())
    assert json.dumps(again.to_dict()) == before.replace('"./blob/', '"blob/')


def test_things_of_unknown_definitions_are_exported_too(make, tmp_path):
    trace_set = TraceSet(traces={"lost": [make.trace(definition="lost")]})
    out = export_trace_set(trace_set, tmp_path / "out")
    assert files(out) == {"traces/unknown/lost.jsonl"}


def test_names_cannot_leave_the_folder(make, tmp_path):
    solution = make.solution("../../evil", author="/etc")
    trace_set = TraceSet(definitions={NAME: make.definition()}, solutions={NAME: [solution]})
    out = export_trace_set(trace_set, tmp_path / "deep" / "out")
    assert "solutions/%2Fetc/gemm/gemm_n8_k4/%2E.%2F..%2Fevil.json" in files(out)
    assert files(tmp_path) == {f"deep/out/{path}" for path in files(out)}
    assert TraceSet.from_path(out).get_solution("../../evil") == solution


def test_only_an_empty_folder_is_written_to(dataset, tmp_path):
    trace_set = TraceSet.from_path(dataset)
    (tmp_path / "empty").mkdir()
    export_trace_set(trace_set, tmp_path / "empty")
    for place in (tmp_path / "empty", dataset):
        before = files(place)
        with pytest.raises(ConfigError, match="not an empty folder"):
            export_trace_set(trace_set, place)
        assert files(place) == before
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="not an empty folder"):
        export_trace_set(trace_set, tmp_path / "file")


def test_tensor_files_of_merged_sets_are_looked_for_in_their_folders(
    make, add_blob, new_writer, tmp_path
):
    roots = []
    for name in "ab":
        writer = new_writer(tmp_path / name)
        writer.json("definitions/gemm/d.json", make.definition_record())
        add_blob(writer, make, name, f"blob/{name}.safetensors")
        writer.text(f"blob/{name}.safetensors", name)
        roots.append(writer.root)
    merged = merge_trace_sets([TraceSet.from_path(root) for root in roots])
    out = export_trace_set(merged, tmp_path / "out", blob_roots=roots)
    assert [(out / f"blob/{name}.safetensors").read_text() for name in "ab"] == ["a", "b"]
