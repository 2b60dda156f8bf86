from __future__ import annotations

import os
import stat

import pytest
import torch
from safetensors.torch import load_file

from flashinfer_bench.errors import BlobError, StorageError
from flashinfer_bench.tensors import load_blob, random_tensor, save_blob


def test_what_is_saved_is_loaded(tmp_path, dtype):
    tensors = {"a": random_tensor((2, 6), dtype, 1), "b": random_tensor((3,), "int32", 2)}
    save_blob(tmp_path / "f.safetensors", tensors)
    loaded = load_blob(tmp_path / "f.safetensors")
    assert loaded.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert torch.equal(
            loaded[key].contiguous().view(torch.uint8), tensor.contiguous().view(torch.uint8)
        )


def test_only_the_keys_asked_for_are_loaded(tmp_path):
    save_blob(tmp_path / "f", {"a": torch.ones(1), "b": torch.ones(2), "c": torch.ones(3)})
    assert list(load_blob(tmp_path / "f", ["c", "a"])) == ["c", "a"]


def test_an_empty_file_of_tensors_is_fine(tmp_path):
    save_blob(tmp_path / "f", {})
    assert load_blob(tmp_path / "f") == {}
    with pytest.raises(BlobError, match="it has nothing"):
        load_blob(tmp_path / "f", ["a"])


def test_views_shared_memory_and_gradients_can_be_saved(tmp_path):
    base = torch.arange(12.0, requires_grad=True).reshape(3, 4)
    save_blob(tmp_path / "f", {"base": base, "row": base[1], "turned": base.t()})
    loaded = load_blob(tmp_path / "f")
    assert torch.equal(loaded["turned"], base.detach().t())
    assert torch.equal(loaded["row"], base.detach()[1])


def test_packed_floats_are_stored_so_that_every_reader_can(tmp_path):
    tensor = random_tensor((2, 4), "float4_e2m1", 1)
    save_blob(tmp_path / "f", {"t": tensor})
    assert torch.equal(load_file(tmp_path / "f")["t"], tensor.view(torch.uint8))


def test_folders_are_made_and_files_replaced(tmp_path):
    path = tmp_path / "blob" / "workloads" / "f.safetensors"
    save_blob(path, {"a": torch.zeros(1)})
    save_blob(path, {"a": torch.ones(1)})
    assert load_blob(path)["a"].tolist() == [1.0]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.skipif(not hasattr(os, "fchmod"), reason="no such permissions here")
def test_the_file_has_the_usual_permissions(tmp_path):
    path = tmp_path / "f"
    save_blob(path, {"a": torch.zeros(1)})
    (tmp_path / "usual").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "f"
    save_blob(path, {"a": torch.zeros(1)})

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        save_blob(path, {"a": torch.ones(1)})
    assert load_blob(path)["a"].tolist() == [0.0]
    assert [file.name for file in tmp_path.iterdir()] == ["f"]


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write"):
        save_blob(tmp_path / "file" / "f", {"a": torch.ones(1)})


@pytest.mark.parametrize(
    "content",
    [b"", b"\0", b"not tensors at all", b"\xff" * 64, (2**62).to_bytes(8, "little") + b"{}"],
    ids=["empty", "byte", "text", "ones", "huge header"],
)
def test_what_is_no_tensor_file_is_refused(tmp_path, content):
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(BlobError, match="not a readable safetensors file") as caught:
        load_blob(path)
    assert caught.value.path == path


def test_a_folder_is_no_tensor_file(tmp_path):
    with pytest.raises(BlobError, match="no such tensor file"):
        load_blob(tmp_path)


def test_a_name_that_is_too_long_is_a_blob_error(tmp_path):
    with pytest.raises(BlobError):
        load_blob(tmp_path / ("x" * 300))
