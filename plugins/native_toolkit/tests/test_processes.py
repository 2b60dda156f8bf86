"""Builds that several processes want, that are killed, and for which there is no room."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from fib_build_cache.store import list_entries, prune
from flashinfer_bench.errors import StorageError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and limits of POSIX")


BUILD_MANY = """
import sys
import c_builder as c
from fib_native_toolkit import compiled

for round in range(int(sys.argv[1])):
    for number in range(3):
        solution = c.solution(f"double run(double x) {{ return {number} * x; }}")
        assert c.CBuilder().build(c.definition(), solution)(2.0) == 2.0 * number
print("done")
"""

BUILD_WITHOUT_ROOM = """
import resource, sys
import c_builder as c
from flashinfer_bench.errors import StorageError

solution = c.solution("double big[100000] = {1}; double run(double x) { return 2 * x; }")
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
try:
    c.CBuilder().build(c.definition(), solution)
except StorageError as error:
    print("full:", error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(c.CBuilder().build(c.definition(), solution)(2.0))
"""


def output_of(process) -> str:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out


def test_builds_go_on_while_the_cache_is_pruned(c, start):
    processes = [start(BUILD_MANY, 12) for _ in range(2)]
    removed = 0
    while any(process.poll() is None for process in processes):
        removed += len(prune(everything=True).removed)
        time.sleep(0.005)
    assert [output_of(process) for process in processes] == ["done\n"] * 2
    assert removed > 3
    assert prune(everything=True).busy == []
    assert list_entries() == []


class TestFullDisk:
    @pytest.mark.parametrize("limit", [0, 4096])
    def test_a_limit_on_the_size_of_files(self, c, start, limit):
        out = output_of(start(BUILD_WITHOUT_ROOM, limit))
        assert out.startswith("full: "), out
        assert out.endswith("\n4.0\n")

    @pytest.fixture
    def small_disk(self, tmp_path):
        """A file system of 256 KiB."""
        folder = tmp_path / "small"
        folder.mkdir()
        if sys.platform != "linux" or os.geteuid() != 0:
            pytest.skip("mounting a small file system takes root")
        command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("mounting is not allowed here")
        yield folder
        subprocess.run(["umount", "-l", str(folder)], check=True)

    @pytest.mark.parametrize("temporary", [True, False])
    def test_a_disk_that_is_really_full(self, c, small_disk, monkeypatch, temporary):
        monkeypatch.setenv("FIB_CACHE_PATH", str(small_disk / "cache"))
        if temporary:
            monkeypatch.setenv("TMPDIR", str(small_disk))
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"x" * 170_000)
        text = "double big[10000] = {1}; double run(double x) { return 2 * x; }"
        with pytest.raises(StorageError) as caught:
            c.CBuilder().build(c.definition(), c.solution(text))
        assert "space" in str(caught.value) or "cannot be" in str(caught.value)
        assert [entry.state for entry in list_entries()] == []
        ballast.unlink()
        assert c.CBuilder().build(c.definition(), c.solution(text))(2.0) == 4.0
