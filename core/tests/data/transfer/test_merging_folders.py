"""Several datasets into one folder: tensor files that fit together, and never half of it."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import time

import pytest

from flashinfer_bench.data import TraceSet, merge_trace_sets
from flashinfer_bench.data.merge import merge_datasets
from flashinfer_bench.errors import ConflictError, StorageError

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


def test_different_tensor_files_of_one_name_are_told_apart(two, tmp_path):
    new = merged(two, tmp_path / "new")
    digest = hashlib.sha256(b"tensors of two").hexdigest()[:12]
    paths = {"one": BLOB, "two": BLOB.replace("x.", f"x_{digest}.")}
    for traces in (new.workloads[NAME], new.traces[NAME]):
        assert {t.workload.uuid: t.workload.inputs["a"].path for t in traces} == paths
    for name, path in paths.items():
        assert (tmp_path / "new" / path).read_text() == f"tensors of {name}"


def test_equal_tensor_files_are_copied_once(two, tmp_path):
    two[1].text(BLOB, "tensors of one")
    new = merged(two, tmp_path / "new")
    assert {t.workload.inputs["a"].path for t in new.workloads[NAME]} == {BLOB}
    assert sum(name.startswith("blob") for name in files(tmp_path / "new")) == 1


def test_one_workload_with_different_tensors_is_a_conflict(two, make, add_blob, tmp_path):
    add_blob(two[1], make, "one", f"./{BLOB}")
    with pytest.raises(ConflictError, match="different workloads named 'one'; they differ in inp"):
        merged(two, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    two[1].text(BLOB, "tensors of one")
    assert len(merged(two, tmp_path / "new").workloads[NAME]) == 2


def test_a_file_may_come_from_the_other_dataset(two, make, add_blob, tmp_path):
    (two[0].root / BLOB).unlink()
    add_blob(two[1], make, "one", BLOB)
    new = merged(two, tmp_path / "new")
    assert len(new.workloads[NAME]) == 2  # one spells the path with ./, the other without
    assert (tmp_path / "new" / BLOB).read_text() == "tensors of two"


def test_a_pointer_stands_for_its_file(two, tmp_path):
    digest = hashlib.sha256(b"tensors of two").hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize 14\n"
    two[0].text(BLOB, pointer)
    for order in (two, two[::-1]):
        out = tmp_path / f"new{order is two}"
        merged(order, out)
        assert (out / BLOB).read_text() == "tensors of two"
        assert sum(name.startswith("blob") for name in files(out)) == 1


def test_fields_in_a_conflict_are_named_to_the_depth(make, tmp_path):
    one, other = make.trace_set(), make.trace_set()
    record = make.definition_record(constraints=["M >= 2"])
    record["axes"]["K"]["value"] = 5
    record["inputs"]["a"]["dtype"] = "float16"
    other.definitions[NAME] = type(one.definitions[NAME])(**record)
    one.root, other.root = tmp_path / "one", tmp_path / "other"
    wanted = f"axes.K.value, inputs.a.dtype, constraints.0 (in {one.root} and {other.root})"
    with pytest.raises(ConflictError, match=re.escape(wanted)):
        merge_trace_sets([one, other])


def test_the_order_of_inputs_is_content(make):
    one, other = make.trace_set(), make.trace_set()
    record = make.definition_record()
    record["inputs"] = dict(reversed(record["inputs"].items()))
    other.definitions[NAME] = type(one.definitions[NAME])(**record)
    with pytest.raises(ConflictError, match="the order of inputs or outputs"):
        merge_trace_sets([one, other])
    record = make.definition_record()
    record["axes"] = dict(reversed(record["axes"].items()))  # which is not
    other.definitions[NAME] = type(one.definitions[NAME])(**record)
    assert len(merge_trace_sets([one, other]).definitions) == 1


def test_numbers_that_python_takes_for_equal_are_not(make):
    one, other = make.trace_set(), make.trace_set()
    for trace_set, value in ((one, 1), (other, True)):
        inputs = {"a": {"type": "scalar", "value": value}}
        workload = make.workload(inputs=inputs)
        trace_set.workloads[NAME] = [make.trace(None).model_copy(update={"workload": workload})]
    with pytest.raises(ConflictError, match=r"inputs\.a\.value"):
        merge_trace_sets([one, other])


def test_nan_equals_itself(make):
    one = make.trace_set(make.trace(error=float("nan")))
    other = make.trace_set(make.trace(error=float("nan")))
    assert len(merge_trace_sets([one, other]).traces[NAME]) == 1


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
    for delay in (0.0, 0.004, 0.013, 0.03):
        out = tmp_path / f"out{delay}"
        out.mkdir()
        command = [sys.executable, "-c", "\n".join(line[8:] for line in script.split("\n"))]
        with subprocess.Popen([*command, dataset, out], stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(delay)
            process.kill()
        done = [folder for folder in out.iterdir() if not folder.name.startswith(".")]
        assert all(files(folder) == whole for folder in done)


def test_the_new_folder_has_the_usual_mode(dataset, tmp_path):
    merged_out = tmp_path / "new"
    merge_datasets([TraceSet.from_path(dataset)], merged_out)
    (tmp_path / "plain").mkdir()
    assert merged_out.stat().st_mode == (tmp_path / "plain").stat().st_mode
