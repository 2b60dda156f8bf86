"""Datasets as archives: what is in them, that they are the same each time, and the way back."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tarfile
import time

import pytest

from fib_datasets.transfer.exporting import export_archive
from fib_datasets.transfer.importing import import_dataset
from fib_datasets.transfer.subset import Subset
from flashinfer_bench.data import TraceSet, export_trace_set
from flashinfer_bench.errors import StorageError, UnsafePathError

NAME = "gemm_n8_k4"


def export(root, out, **subset):
    return export_archive(TraceSet.from_path(root), out, Subset(**subset))


def test_what_is_in_an_archive(with_blobs, tmp_path):
    done = export(with_blobs, tmp_path / "a.tar.gz")
    counts = {"definitions": 1, "solutions": 2, "workloads": 3, "traces": 4, "blobs": 1}
    assert done.counts == counts
    with tarfile.open(done.archive) as tar:
        assert tar.getnames() == [
            "fib-archive.json",
            "definitions/gemm/gemm_n8_k4.json",
            "solutions/alice/gemm/gemm_n8_k4/alice_v1.json",
            "solutions/baseline/gemm/gemm_n8_k4/baseline_v1.json",
            "workloads/gemm/gemm_n8_k4.jsonl",
            "traces/gemm/gemm_n8_k4.jsonl",
            "blob/workloads/gemm/x.safetensors",
        ]
        manifest = json.load(tar.extractfile("fib-archive.json"))
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in tar.getmembers()} == {
            (0, 0, 0, "", "", 0o644)
        }
    assert manifest == {
        "format": "flashinfer-trace-archive",
        "version": 1,
        "files": 6,
        "contents": counts,
        "missing_blobs": [],
    }


@pytest.mark.parametrize("suffix", [".tgz", ".tar"])
def test_the_way_there_and_back(with_blobs, tmp_path, suffix):
    archive = export(with_blobs, tmp_path / f"a{suffix}").archive
    done = import_dataset(archive, tmp_path / "new")
    assert done.added == {"definitions": 1, "solutions": 2, "workloads": 3, "traces": 4, "blobs": 1}
    assert set(done.known.values()) == {0}
    new = TraceSet.from_path(tmp_path / "new")
    before = json.dumps(TraceSet.from_path(with_blobs).to_dict())
    assert json.dumps(new.to_dict()) == before.replace('"./blob/', '"blob/')
    assert (tmp_path / "new/blob/workloads/gemm/x.safetensors").read_bytes() == b"tensors"
    assert not list(tmp_path.glob(".*"))  # nothing hidden stays behind


def test_the_same_content_gives_the_same_bytes(with_blobs, tmp_path):
    first = export(with_blobs, tmp_path / "a.tar.gz").archive.read_bytes()
    moved = tmp_path / "elsewhere"
    shutil.copytree(with_blobs, moved)
    for file in moved.rglob("*"):
        os.utime(file, (time.time() - 1e6, time.time() - 1e6))
        if file.is_file():
            file.chmod(0o600)
    (moved / "definitions/gemm/gemm_n8_k4.json").rename(moved / "definitions/flat.json")
    assert export(moved, tmp_path / "other_name.tgz").archive.read_bytes() == first
    import_dataset(tmp_path / "a.tar.gz", tmp_path / "new")
    assert export(tmp_path / "new", tmp_path / "again.tar.gz").archive.read_bytes() == first


def test_parts_of_a_dataset(with_blobs, writer, make, tmp_path):
    writer.json("definitions/op/other.json", make.definition_record("other", op_type="op"))
    writer.json("solutions/o.json", make.solution_record("other_v1", "other"))
    writer.lines("traces/op/other.jsonl", make.trace_record("other_v1", "other"))
    for subset, definitions, solutions, traces in (
        ({"definitions": ("other",)}, 1, 1, 1),
        ({"op_types": ("gemm",)}, 1, 2, 4),
        ({"solutions": ("alice_v1",)}, 1, 1, 3),
        ({"solutions": ("alice_v1", "other_v1")}, 2, 2, 4),
        ({"op_types": ("gemm", "op"), "definitions": ("other",)}, 1, 1, 1),
        ({}, 2, 3, 5),
    ):
        counts = export(with_blobs, tmp_path / "a.tar", **subset).counts
        assert counts["definitions"] == definitions, subset
        assert counts["solutions"] == solutions, subset
        assert counts["traces"] == traces, subset
    assert export(with_blobs, tmp_path / "a.tar", definitions=("other",)).counts["blobs"] == 0


def test_files_that_are_missing_or_pointers(with_blobs, writer, make, add_blob, tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64
    writer.text("blob/workloads/gemm/x.safetensors", pointer + b"\nsize 9\n")
    add_blob(writer, make, "w4", "blob/none.safetensors")
    done = export(with_blobs, tmp_path / "a.tar.gz")
    assert done.missing_blobs == ("blob/none.safetensors",)
    assert done.pointers == ("blob/workloads/gemm/x.safetensors",)
    assert import_dataset(done.archive, tmp_path / "new").missing_blobs == done.missing_blobs


@pytest.mark.parametrize("path", ["../secret", "{}/secret", "blob/link"])
@pytest.mark.parametrize(
    "write",
    [export, import_dataset, lambda root, out: export_trace_set(TraceSet.from_path(root), out)],
    ids=["archive", "import", "folder"],
)
def test_a_tensor_file_outside_is_refused(
    with_blobs, writer, make, add_blob, tmp_path, write, path
):
    (tmp_path / "secret").write_text("secret")
    (with_blobs / "blob/link").symlink_to(tmp_path / "secret")
    add_blob(writer, make, "w4", path.format(tmp_path))
    with pytest.raises(UnsafePathError):
        write(with_blobs, tmp_path / "out.tar")
    assert not (tmp_path / "out.tar").exists()


def test_an_archive_is_replaced_as_a_whole_or_not_at_all(with_blobs, tmp_path, monkeypatch):
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(b"old")

    def fail(self, *args, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(tarfile.TarFile, "addfile", fail)
        with pytest.raises(StorageError, match="No space left"):
            export(with_blobs, archive)
    assert archive.read_bytes() == b"old"
    assert not list(tmp_path.glob(".*"))
    export(with_blobs, archive)
    assert gzip.decompress(archive.read_bytes())
