"""Git-LFS pointers, with a stand-in for git that is a real program on the PATH."""

import os
import sys

import pytest
import torch

from flashinfer_bench.data import blobs
from flashinfer_bench.data.blobs import save_tensors
from flashinfer_bench.errors import BlobError
from flashinfer_bench.tensors.generate import load_checked

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize 96\n"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the stand-in is a script")


@pytest.fixture
def pointer(tmp_path):
    path = tmp_path / "blob" / "t.safetensors"
    path.parent.mkdir()
    path.write_text(POINTER.format(oid="0" * 64))
    return path


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Return a function that puts programs on an otherwise empty PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def install(name, code=""):
        program = folder / name
        program.write_text(f"#!{sys.executable}\nimport os, shutil, sys, time\n{code}\n")
        program.chmod(0o755)

    return install


def load(path):
    return load_checked(path, "t", shape=(2,), dtype="float32", field="inputs.x")


def test_without_git_lfs_the_error_says_what_to_do(pointer, programs):
    programs("git")
    with pytest.raises(BlobError, match="Git-LFS pointer") as caught:
        load(pointer)
    assert "git-lfs is not installed" in str(caught.value)
    assert "git lfs pull --include '**/t.safetensors'" in caught.value.hint
    assert caught.value.path == pointer


def test_with_git_lfs_the_file_is_fetched_and_read(pointer, programs, tmp_path):
    save_tensors(tmp_path / "real", {"t": torch.ones(2)})
    programs("git-lfs")
    programs("git", f"shutil.copy({str(tmp_path / 'real')!r}, 't.safetensors')")
    assert load(pointer).tolist() == [1.0, 1.0]


def test_what_git_says_is_passed_on(pointer, programs):
    programs("git-lfs")
    programs("git", "sys.exit('batch request: object does not exist on the server')")
    with pytest.raises(BlobError, match=r"could not fetch it: .*does not exist on the server"):
        load(pointer)


def test_a_pull_that_hangs_is_given_up(pointer, programs, monkeypatch):
    monkeypatch.setattr(blobs, "PULL_TIMEOUT_S", 0.2)
    programs("git-lfs")
    programs("git", "time.sleep(60)")
    with pytest.raises(BlobError, match=r"timed out after 0\.2 seconds"):
        load(pointer)
