"""Tensor files: pointers, safe paths, tensors."""

from __future__ import annotations

import json
import struct

import pytest

from flashinfer_bench.data import TraceSet, is_lfs_pointer, resolve_blob
from flashinfer_bench.errors import BlobError, UnsafePathError

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    "size 12345\n"
)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def safetensors(header, data=b""):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_pointers_are_told_from_files(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_text(POINTER)
    assert is_lfs_pointer(path)
    for content in (b"", b"version", safetensors({}), POINTER.encode() + b"x" * 2000):
        path.write_bytes(content)
        assert not is_lfs_pointer(path)


# -------------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize(
    "name", ["../x", "blob/../../x", "/etc/passwd", "", "a\0b", "..", "blob/../../dataset2/x"]
)
def test_paths_outside(tmp_path, name):
    root = tmp_path / "dataset"
    root.mkdir()
    assert resolve_blob(root, "blob/../blob//x") == root.resolve() / "blob/x"
    with pytest.raises(UnsafePathError):
        resolve_blob(root, name)


def test_links_that_leave_the_root(tmp_path):
    root = tmp_path / "dataset"
    root.mkdir()
    (tmp_path / "secret").write_text("secret")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "folder").symlink_to(tmp_path)
    for name in ("link", "folder/secret", "folder/new"):
        with pytest.raises(UnsafePathError, match="leads out"):
            resolve_blob(root, name)


def test_a_loop_of_links(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    try:
        found = resolve_blob(tmp_path, "a/x")
    except UnsafePathError:
        return
    assert found.is_relative_to(tmp_path.resolve())


def test_the_cache_of_a_hub_keeps_files_beside_the_dataset(tmp_path):
    root = tmp_path / "datasets--a--b" / "snapshots" / "0123"
    blobs = tmp_path / "datasets--a--b" / "blobs"
    root.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "abc").write_text("")
    (root / "x.safetensors").symlink_to("../../blobs/abc")
    (root / "y.safetensors").symlink_to("../../refs")
    assert resolve_blob(root, "x.safetensors") == (blobs / "abc").resolve()
    with pytest.raises(UnsafePathError):
        resolve_blob(root, "y.safetensors")


# ------------------------------------------------------------------------------------------ tensors


@pytest.fixture
def torch():
    pytest.importorskip("safetensors.torch")
    return pytest.importorskip("torch")


NAME = "gemm_n8_k4"


def test_tensors_are_written_and_read(dataset, torch):
    trace_set = TraceSet.from_path(dataset)
    tensors = {
        "a": torch.arange(12).reshape(3, 4).t(),  # not contiguous
        "b": torch.full((2,), 1.5, dtype=torch.bfloat16, requires_grad=True),
        "scalar": torch.tensor(3, dtype=torch.int32),
        "none": torch.empty(0, 4),
        "mask": torch.tensor([True, False]),
        "quantised": torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn),
    }
    path = trace_set.add_workload_blob_tensor(NAME, "some-uuid", tensors)
    assert path == "blob/workloads/gemm/gemm_n8_k4/gemm_n8_k4_some-uuid.safetensors"
    for name in (path, f"./{path}"):
        read = trace_set.get_workload_blob_tensor(name)
        assert read.keys() == tensors.keys()
        for key, tensor in tensors.items():
            assert read[key].dtype == tensor.dtype
            assert torch.equal(read[key].float(), tensor.detach().float())


def test_no_identity_leaves_the_folder_or_replaces_a_file(dataset, torch):
    trace_set = TraceSet.from_path(dataset)
    path = trace_set.add_workload_blob_tensor(NAME, "../../../evil", {"a": torch.ones(1)})
    assert path.startswith("blob/workloads/gemm/gemm_n8_k4/gemm_n8_k4_..%2F..%2F..%2Fevil")
    with pytest.raises(ValueError, match="exists already"):
        trace_set.add_workload_blob_tensor(NAME, "../../../evil", {"a": torch.zeros(1)})
    assert trace_set.get_workload_blob_tensor(path)["a"].item() == 1


def test_tensors_of_what_is_no_tensor_file_are_not_read(dataset, torch, writer):
    overlapping = safetensors({"a": ENTRY, "b": ENTRY}, b"\0" * 8)
    for content, problem in (
        (overlapping, "not a readable safetensors file"),
        (POINTER, "Git-LFS pointer"),
    ):
        writer.text("blob/x.safetensors", content)
        with pytest.raises(BlobError, match=problem):
            TraceSet.from_path(dataset).get_workload_blob_tensor("blob/x.safetensors")


def test_packed_floats_are_stored_so_that_every_reader_can(dataset, torch):
    from safetensors.torch import load_file

    packed = torch.tensor([1, 2, 255], dtype=torch.uint8)
    trace_set = TraceSet.from_path(dataset)
    tensors = {"t": packed.view(torch.float4_e2m1fn_x2)}
    path = trace_set.add_workload_blob_tensor(NAME, "w", tensors)
    assert torch.equal(load_file(dataset / path)["t"], packed)
