"""The helper that is compiled on the machine: building, finding, and what it looks at."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys

import pytest
import torch

from flashinfer_bench.apply.dispatch import native
from flashinfer_bench.errors import BuildError

pytestmark = pytest.mark.slow  # compiling takes long: once for all tests


@pytest.fixture(autouse=True)
def _own_maker():
    native.maker.cache_clear()
    yield
    native.maker.cache_clear()


@pytest.fixture
def copy(helper_cache, tmp_path, monkeypatch):
    """A copy of the cache, to be damaged; returns the library in it."""
    shutil.copytree(helper_cache, tmp_path / "cache")
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    return native.folder() / native._FILE


def test_it_is_found_by_a_new_process(helper_cache):
    script = (
        "from flashinfer_bench.apply.dispatch import native, recognition\n"
        "print(native.maker() is not None, recognition.recognition().sees_all)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "FIB_CACHE_PATH": str(helper_cache), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "True"]


def test_nothing_is_compiled_unasked(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    assert native.maker() is None
    assert not (tmp_path / "cache").exists()


def test_a_compiler_that_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    bad = tmp_path / "bad.cpp"
    bad.write_text('#error "not today"\n')
    monkeypatch.setattr(native, "_SOURCE", bad)
    with pytest.raises(BuildError, match="does not compile") as caught:
        native.build()
    assert "not today" in caught.value.log
    assert native.maker() is None


@pytest.mark.parametrize("damage", ["truncated", "empty", "one byte", "missing", "no digest"])
def test_a_damaged_library_is_not_used(copy, damage, caplog):
    content = copy.read_bytes()
    copy.unlink()
    changed = {
        "truncated": content[:1000],
        "empty": b"",
        "one byte": content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
        "no digest": content,
    }
    if damage in changed:
        copy.write_bytes(changed[damage])
    if damage == "no digest":
        (copy.parent / "sha256").unlink()
    with caplog.at_level(logging.WARNING):
        assert native.maker() is None
        assert native.maker() is None
    assert caplog.text.count("cannot be used") == 1


def test_an_unfinished_build_is_not_used(copy):
    (copy.parent / ".complete").unlink()
    assert native.maker() is None


BLIND = {
    "sharing memory": lambda make: (
        lambda tensors, written=(), anywhere=False: make(tensors, (), anywhere=anywhere)
    ),
    "modes": lambda make: (
        lambda tensors, written=(), anywhere=False: make(tensors, written, anywhere=True)
    ),
    "everything": lambda make: lambda *args, **kwargs: lambda *tensors: True,
    "anything": lambda make: lambda *args, **kwargs: lambda *tensors: False,
}


@pytest.mark.parametrize("what", sorted(BLIND))
def test_a_helper_that_does_not_see_something_is_not_used(helper, what):
    assert native._problem_of(helper) is None
    assert native._problem_of(BLIND[what](helper)) is not None


# ------------------------------------------------------------------------ what it looks at


def test_it_keeps_and_leaks_nothing(helper):
    x, y = torch.zeros(3, 4), torch.zeros(3, 4)
    before = sys.getrefcount(x), sys.getrefcount(torch.Tensor)
    checks = [helper([x, y], [1]) for _ in range(100)]
    for check in checks:
        assert check(x, y)
    del checks, check
    assert sys.getrefcount(x) == before[0]
    assert abs(sys.getrefcount(torch.Tensor) - before[1]) < 20
