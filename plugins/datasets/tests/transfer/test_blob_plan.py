"""Where tensor files are looked for, and what they are called where they go."""

from __future__ import annotations

import hashlib

import pytest

from fib_datasets.transfer.blob_plan import BlobPlan, BlobRoot, find_blob
from flashinfer_bench.errors import BlobError, UnsafePathError

NAME = "gemm_n8_k4"


def set_with(make, *paths, definition=NAME):
    """A set in memory with a workload of each path."""
    trace_set = make.trace_set()
    trace_set.definitions[definition] = make.definition(definition)
    for number, path in enumerate(paths):
        spec = {"type": "safetensors", "path": path, "tensor_key": "a"}
        record = make.trace_record(None, definition, uuid=f"w{number}")
        record["workload"]["inputs"]["a"] = spec
        trace = make.trace(None, definition).model_validate(record)
        trace_set.workloads.setdefault(definition, []).append(trace)
    return trace_set


def paths_of(trace_set, definition=NAME):
    return [trace.workload.inputs["a"].path for trace in trace_set.workloads[definition]]


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root"
    for name in ("blob/a.safetensors", "b/a.safetensors", "blob/x y/ü.safetensors"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def add(plan, root, trace_set):
    return plan.add(trace_set, [BlobRoot(root, root)])


def test_a_file_below_blob_keeps_its_name(root, make):
    plan = BlobPlan()
    placed = add(plan, root, set_with(make, "./blob/a.safetensors", "blob//a.safetensors"))
    assert paths_of(placed) == ["blob/a.safetensors"] * 2
    assert plan.files == {"blob/a.safetensors": root / "blob/a.safetensors"}
    assert plan.missing == {}


def test_another_gets_its_place_of_today(root, make):
    plan = BlobPlan()
    placed = add(plan, root, set_with(make, "b/a.safetensors", "blob/../b/a.safetensors"))
    assert paths_of(placed) == ["blob/workloads/gemm/gemm_n8_k4/a.safetensors"] * 2
    assert list(plan.files.values()) == [root / "b/a.safetensors"]


def test_what_is_nowhere_is_listed_once(root, make):
    plan = BlobPlan()
    placed = add(plan, root, set_with(make, "./none", "none", "./none", "blob"))
    assert paths_of(placed) == ["none", "none", "none", "blob"]
    assert list(plan.missing) == ["./none", "none", "blob"]
    assert plan.files == {}


def test_files_of_the_target_keep_their_names(root, tmp_path, make):
    target = tmp_path / "target"
    (target / "blob").mkdir(parents=True)
    (target / "blob/a.safetensors").write_text("others")
    plan = BlobPlan(target)
    placed = add(plan, root, set_with(make, "blob/a.safetensors"))
    digest = hashlib.sha256(b"blob/a.safetensors").hexdigest()[:12]
    assert paths_of(placed) == [f"blob/a_{digest}.safetensors"]
    (target / "blob/a.safetensors").write_text("blob/a.safetensors")
    plan = BlobPlan(target)
    assert paths_of(add(plan, root, set_with(make, "blob/a.safetensors"))) == ["blob/a.safetensors"]
    assert plan.files == {}


def test_three_files_of_one_name(tmp_path, make):
    plan = BlobPlan()
    names = set()
    for number in (1, 2, 3, 2):
        root = tmp_path / str(number)
        (root / "blob").mkdir(parents=True, exist_ok=True)
        (root / "blob/a").write_text(str(number))
        names.update(paths_of(add(plan, root, set_with(make, "blob/a"))))
    assert len(names) == len(plan.files) == 3
    assert "blob/a" in names


# ----------------------------------------------------------------------------------- find_blob


def test_a_path_up_is_fine_as_long_as_it_stays_within(root):
    place = BlobRoot(root / "b", root)
    assert find_blob("../blob/a.safetensors", [place]) == root / "blob/a.safetensors"
    with pytest.raises(UnsafePathError, match="leads out of the dataset"):
        find_blob("../../secret", [place])


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a\0b"])
def test_what_the_first_place_refuses_is_refused(root, path):
    (root.parent / "x").write_text("secret")
    places = [BlobRoot(root, root), BlobRoot(root / "b", root)]
    with pytest.raises(UnsafePathError):
        find_blob(path, places)


def test_another_place_may_have_it_nevertheless(root):
    """As paths relative to the folder above the dataset, in old releases."""
    places = [BlobRoot(root, root), BlobRoot(root.parent, root)]
    assert find_blob("root/b/a.safetensors", places) == root / "b/a.safetensors"
    assert find_blob("secret", places) is None


def test_a_file_that_cannot_be_read_is_named(root, make, monkeypatch):
    from fib_datasets.transfer import blob_plan

    def fail(first, second, shallow):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(blob_plan.filecmp, "cmp", fail)
    plan = BlobPlan()
    add(plan, root, set_with(make, "blob/a.safetensors"))
    other = root / "b"
    (other / "blob").mkdir()
    (other / "blob/a.safetensors").write_text("other")
    with pytest.raises(BlobError, match="cannot be read: Permission denied") as caught:
        add(plan, other, set_with(make, "blob/a.safetensors"))
    assert caught.value.path == other / "blob/a.safetensors"
