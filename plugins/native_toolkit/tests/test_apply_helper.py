"""The helper that apply recognises calls with: compiled once, found by others, never if damaged."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("torch")

import fib_apply_helper
from flashinfer_bench.errors import BuildError

pytestmark = pytest.mark.slow  # compiling takes long: once for all tests


@pytest.fixture(autouse=True)
def _fresh():
    fib_apply_helper.helper.cache_clear()
    yield
    fib_apply_helper.helper.cache_clear()


@pytest.fixture
def copy(helper_cache, tmp_path, monkeypatch):
    """A copy of the cache, to be damaged; returns the library in it."""
    shutil.copytree(helper_cache, tmp_path / "cache")
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    return fib_apply_helper.helper_folder() / fib_apply_helper._FILE


def test_it_is_found_by_a_new_process(helper_cache):
    script = (
        "from flashinfer_bench.apply.dispatch import recognition\n"
        "print(recognition.by_helper() is not None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "FIB_CACHE_PATH": str(helper_cache), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True"]


def test_nothing_is_compiled_unasked(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    assert fib_apply_helper.helper() is None
    assert not (tmp_path / "cache").exists()


def test_a_compiler_that_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    bad = tmp_path / "bad.cpp"
    bad.write_text('#error "not today"\n')
    monkeypatch.setattr(fib_apply_helper, "_SOURCE", bad)
    with pytest.raises(BuildError, match="does not compile") as caught:
        fib_apply_helper.build_helper()
    assert "not today" in caught.value.log
    assert fib_apply_helper.helper() is None


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
        assert fib_apply_helper.helper() is None
        assert fib_apply_helper.helper() is None
    assert caplog.text.count("cannot be used") == 1


def test_an_unfinished_build_is_not_used(copy):
    (copy.parent / ".complete").unlink()
    assert fib_apply_helper.helper() is None
