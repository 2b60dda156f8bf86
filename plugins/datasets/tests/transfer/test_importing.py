"""Bringing data into a dataset: a new one, or one that is there; older layouts; conflicts."""

from __future__ import annotations

import json

import pytest

from fib_datasets.transfer.importing import import_dataset
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import ConfigError, ConflictError

NAME = "gemm_n8_k4"


@pytest.fixture
def second(new_writer, make, tmp_path):
    """A dataset with other records of the same definition, and a tensor file of the same name."""
    writer = new_writer(tmp_path / "second")
    writer.json("definitions/d.json", make.definition_record())
    writer.json("solutions/bob.json", make.solution_record("bob_v1", author="bob"))
    writer.lines("workloads/w.jsonl", make.trace_record(None, uuid="w9", m=9))
    writer.lines("traces/t.jsonl", make.trace_record("bob_v1"), make.trace_record("bob_v1", m=5))
    return writer


def counts(done):
    return tuple(done.added.values())


def test_a_killed_import_is_finished_by_the_next(dataset, second, make, tree, monkeypatch):
    from fib_datasets.transfer import files

    calls = []

    def die(*args):
        calls.append(args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(files, "append_lines", die)
        with pytest.raises(KeyboardInterrupt):
            import_dataset(second.root, dataset)
    assert calls
    assert TraceSet.from_path(dataset).load_errors == []  # what is there can be used
    assert counts(import_dataset(second.root, dataset)) == (0, 0, 1, 2, 0)


@pytest.mark.parametrize("kind", ["definition", "solution", "workload"])
def test_a_conflict_changes_nothing(dataset, second, make, tree, kind):
    if kind == "definition":
        second.json("definitions/d.json", make.definition_record(tags=["new"]))
    elif kind == "solution":
        second.json("solutions/a.json", make.solution_record(description="another"))
    else:
        second.lines("workloads/w.jsonl", make.trace_record(None, uuid="w1", m=3))
    before = tree(dataset)
    with pytest.raises(
        ConflictError, match=rf"different {kind}s named .* they differ in "
    ) as caught:
        import_dataset(second.root, dataset)
    assert str(dataset) in str(caught.value)
    assert str(second.root) in str(caught.value)
    assert tree(dataset) == before


def test_different_tensor_files_of_one_name(with_blobs, second, make, add_blob):
    add_blob(second, make, "w7", "blob/workloads/gemm/x.safetensors")
    second.text("blob/workloads/gemm/x.safetensors", b"others")
    done = import_dataset(second.root, with_blobs)
    assert done.added["blobs"] == 1
    after = TraceSet.from_path(with_blobs)
    for traces in (after.workloads[NAME], after.traces[NAME]):
        paths = {t.workload.uuid: t.workload.inputs["a"] for t in traces}
        assert (with_blobs / paths["w3"].path).read_bytes() == b"tensors"
        assert (with_blobs / paths["w7"].path).read_bytes() == b"others"
    # The digest in its name is that of the content, so that it is known the next time.
    assert counts(import_dataset(second.root, with_blobs)) == (0, 0, 0, 0, 0)


def test_places_that_cannot_be_imported_into(dataset, second, tmp_path, tree):
    before = tree(tmp_path)
    for place in (second.root, second.root / "sub", tmp_path):
        with pytest.raises(ConfigError, match="contain one another"):
            import_dataset(second.root, place)
    assert tree(tmp_path) == before


def test_errors_of_an_archive_name_the_file_in_it(dataset, writer, make_tar, tmp_path):
    archive = make_tar(
        tmp_path / "a.tgz",
        ("definitions/a.json", (dataset / "definitions/gemm/gemm_n8_k4.json").read_bytes()),
        ("definitions/b.json", b"{"),
    )
    (error,) = import_dataset(archive, tmp_path / "new").left_out
    assert error.path == archive / "definitions/b.json"


# ----------------------------------------------------------------------------------- older layouts


@pytest.fixture
def old(new_writer, make, tmp_path):
    """A repository as it was in 2025: the dataset below it, the spellings of then."""
    writer = new_writer(tmp_path / "repository")
    definition = make.definition_record()
    definition["type"] = definition.pop("op_type")
    del definition["axes"]["M"]["type"]
    writer.json("dataset/definitions/decode/g.json", definition)
    solution = make.solution_record(spec={"language": "Python", "entry_point": "run"})
    writer.json("dataset/solutions/s.json", solution)
    workloads = []
    for uuid, path in (
        ("w1", "dataset/traces/workloads/prefill/of_repository.safetensors"),
        ("w2", "./decode/of_workloads.safetensors"),
        ("w3", "./blob/today.safetensors"),
    ):
        spec = {"type": "safetensors", "path": path, "tensor_key": "a"}
        record = make.workload_record(uuid)
        record["inputs"]["a"] = spec
        workloads.append(record)
        line = {"definition": NAME, "solution": "", "workload": record, "evaluation": {}}
        folder = "dataset/traces/workloads/gemm" if uuid != "w3" else "dataset/traces"
        writer.lines(f"{folder}/{uuid}.jsonl", line)
    run = make.trace_record("alice_v1")
    evaluation = run["evaluation"]
    evaluation["environment"] = {"device": "H100", "libs": {}}
    evaluation["log_file"] = "some.log"
    del evaluation["log"]
    run["workload"] = {key: value for key, value in workloads[0].items() if key != "uuid"}
    writer.lines("dataset/traces/g.jsonl", run)
    writer.text("dataset/traces/workloads/prefill/of_repository.safetensors", b"1")
    writer.text("dataset/traces/workloads/decode/of_workloads.safetensors", b"2")
    writer.text("dataset/blob/today.safetensors", b"3")
    writer.text("README.md", "hello")
    return writer


def test_an_old_repository_becomes_a_dataset_of_today(old, tmp_path, tree):
    done = import_dataset(old.root, tmp_path / "new")
    assert counts(done) == (1, 1, 3, 1, 3)
    assert done.left_out == ()
    assert done.missing_blobs == ()
    folder = "blob/workloads/gemm/gemm_n8_k4"
    files = tree(tmp_path / "new")
    assert set(files) == {
        "definitions/gemm/gemm_n8_k4.json",
        "solutions/alice/gemm/gemm_n8_k4/alice_v1.json",
        "workloads/gemm/gemm_n8_k4.jsonl",
        "traces/gemm/gemm_n8_k4.jsonl",
        f"{folder}/of_repository.safetensors",
        f"{folder}/of_workloads.safetensors",
        "blob/today.safetensors",
    }
    definition = json.loads(files["definitions/gemm/gemm_n8_k4.json"])
    assert definition["op_type"] == "gemm"
    assert definition["axes"]["M"] == {"type": "var"}
    solution = json.loads(files["solutions/alice/gemm/gemm_n8_k4/alice_v1.json"])
    assert solution["spec"]["entry_point"] == "main.py::run"
    lines = [json.loads(line) for line in files["workloads/gemm/gemm_n8_k4.jsonl"].splitlines()]
    assert {one["workload"]["inputs"]["a"]["path"] for one in lines} == set(files) - {
        name for name in files if not name.startswith("blob")
    }
    assert all(one["solution"] is None and one["evaluation"] is None for one in lines)
    trace = json.loads(files["traces/gemm/gemm_n8_k4.jsonl"])
    assert trace["evaluation"]["environment"]["hardware"] == "H100"
    assert trace["evaluation"]["log"] == "log file: some.log"
    assert trace["workload"]["inputs"]["a"]["path"] == f"{folder}/of_repository.safetensors"
    assert trace["workload"]["uuid"]


def test_an_old_tensor_path_cannot_leave_the_dataset(old, make, add_blob, tmp_path):
    old.text("secret", "secret")  # beside the dataset, within the repository
    record = make.trace_record(None, uuid="w9")
    record["workload"]["inputs"]["a"] = {"type": "safetensors", "path": "secret", "tensor_key": "a"}
    old.lines("dataset/workloads/more.jsonl", record)
    done = import_dataset(old.root, tmp_path / "new")
    assert done.missing_blobs == ("secret",)
    assert done.added["blobs"] == 3


def test_lists_at_the_root(new_writer, make, tmp_path):
    writer = new_writer(tmp_path / "lists")
    names = ("a", "b")
    writer.json("definitions.json", [make.definition_record(name) for name in names])
    writer.json("solutions.json", [make.solution_record(f"s{name}", name) for name in names])
    writer.lines(
        "traces.jsonl", *(make.trace_record(s, "a", uuid="1") for s in ("sa", None)), {"x": 1}
    )
    done = import_dataset(writer.root, tmp_path / "new")
    assert counts(done) == (2, 2, 1, 1, 0)
    (error,) = done.left_out
    assert (error.path, error.line) == (writer.root / "traces.jsonl", 3)
    writer.json("definitions.json", [make.definition_record("a")] * 2)
    writer.json("solutions.json", [make.solution_record("s", "a")] * 2)
    writer.text("traces.jsonl", b"\xff")
    errors = import_dataset(writer.root, tmp_path / "new2").left_out
    assert [error.path.name for error in errors] == [
        "definitions.json",
        "solutions.json",
        "traces.jsonl",
    ]


def test_a_pointer_is_replaced_by_its_file(with_blobs, second, make, add_blob, writer):
    import hashlib

    digest = hashlib.sha256(b"tensors").hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize 7\n"
    writer.text("blob/workloads/gemm/x.safetensors", pointer)
    add_blob(second, make, "w3", "blob/workloads/gemm/x.safetensors")
    second.text("blob/workloads/gemm/x.safetensors", b"tensors")
    import_dataset(second.root, with_blobs)
    assert (with_blobs / "blob/workloads/gemm/x.safetensors").read_bytes() == b"tensors"


def test_an_existing_file_that_cannot_be_read_is_not_replaced(dataset, second, writer, tree):
    broken = writer.text("definitions/gemm/gemm_n8_k4.json", "{")
    with pytest.raises(ConflictError, match="file has this name"):
        import_dataset(second.root, dataset)
    assert broken.read_text() == "{"
