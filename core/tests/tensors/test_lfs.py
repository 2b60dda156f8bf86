"""Git-LFS pointers, with a stand-in for git that is a real program on the PATH."""

from __future__ import annotations

import os
import sys

import pytest
import torch

from flashinfer_bench.errors import BlobError
from flashinfer_bench.tensors import lfs, load_blob, save_blob

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

    def install(name: str, code: str = "") -> None:
        program = folder / name
        program.write_text(f"#!{sys.executable}\nimport os, shutil, sys, time\n{code}\n")
        program.chmod(0o755)

    return install


def test_without_git_lfs_the_error_says_what_to_do(pointer, programs):
    programs("git")
    with pytest.raises(BlobError, match="Git-LFS pointer") as caught:
        load_blob(pointer)
    assert "git-lfs is not installed" in str(caught.value)
    assert "git lfs pull --include '**/t.safetensors'" in caught.value.hint
    assert caught.value.path == pointer


def test_without_git_it_is_the_same(pointer, programs):
    programs("git-lfs")
    with pytest.raises(BlobError, match="not installed"):
        load_blob(pointer)


def test_with_git_lfs_the_file_is_fetched_and_read(pointer, programs, tmp_path):
    save_blob(tmp_path / "real", {"t": torch.ones(2)})
    programs("git-lfs")
    programs("git", f"shutil.copy({str(tmp_path / 'real')!r}, 't.safetensors')")
    assert load_blob(pointer)["t"].tolist() == [1.0, 1.0]


def test_git_is_asked_for_this_one_file_and_cannot_ask_back(pointer, programs, tmp_path):
    programs("git-lfs")
    said = str(tmp_path / "said")
    programs(
        "git",
        f"with open({said!r}, 'w') as said:\n"
        "    said.write(repr((sys.argv[1:], os.getcwd(), sys.stdin.read())))",
    )
    with pytest.raises(BlobError, match="left it as it is"):
        load_blob(pointer)
    arguments, folder, answer = eval((tmp_path / "said").read_text())
    assert arguments == ["lfs", "pull", "--include", "**/t.safetensors", "--exclude", ""]
    assert folder == str(pointer.parent)
    assert answer == ""


def test_characters_of_a_pattern_are_quoted(pointer, programs, tmp_path):
    odd = pointer.with_name("a[1]*.safetensors")
    pointer.rename(odd)
    programs("git-lfs")
    programs("git", f"open({str(tmp_path / 'said')!r}, 'w').write(sys.argv[4])")
    with pytest.raises(BlobError):
        load_blob(odd)
    assert (tmp_path / "said").read_text() == r"**/a\[1\]\*.safetensors"


def test_what_git_says_is_passed_on(pointer, programs):
    programs("git-lfs")
    programs("git", "sys.exit('batch request: object does not exist on the server')")
    with pytest.raises(BlobError, match=r"could not fetch it: .*does not exist on the server"):
        load_blob(pointer)


def test_a_silent_failure_tells_its_exit_code(pointer, programs):
    programs("git-lfs")
    programs("git", "sys.exit(3)")
    with pytest.raises(BlobError, match="exit code 3"):
        load_blob(pointer)


def test_a_pull_that_hangs_is_given_up(pointer, programs, monkeypatch):
    monkeypatch.setattr(lfs, "PULL_TIMEOUT_S", 0.2)
    programs("git-lfs")
    programs("git", "time.sleep(60)")
    with pytest.raises(BlobError, match=r"no answer within 0\.2 s"):
        load_blob(pointer)


def test_a_git_that_cannot_be_run_is_an_error_of_the_file(pointer, programs, tmp_path):
    programs("git-lfs")
    programs("git")
    (tmp_path / "bin" / "git").write_text("#!/nonexistent/interpreter\n")
    with pytest.raises(BlobError, match="could not fetch it"):
        load_blob(pointer)


def test_a_file_that_is_no_pointer_is_left_alone(tmp_path, programs):
    save_blob(tmp_path / "f", {"t": torch.ones(1)})
    programs("git-lfs")
    programs("git", "sys.exit('must not be called')")
    assert load_blob(tmp_path / "f")["t"].tolist() == [1.0]
