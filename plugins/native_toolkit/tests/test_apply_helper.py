"""The helper that apply recognises calls with: compiled once, found by others, never if damaged."""

import logging
import os
import shutil
import subprocess
import sys
import threading

import pytest

pytest.importorskip("torch")

import torch

import fib_apply_helper
from flashinfer_bench import apply, enable_apply
from flashinfer_bench.apply.dispatch import recognition
from flashinfer_bench.data import Definition, TraceSet
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


def test_nothing_is_compiled_where_that_is_not_wanted(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setenv("FIB_APPLY_HELPER", "0")
    assert fib_apply_helper.helper() is None
    recognition.when_quicker(Later().renew)
    assert not fib_apply_helper._waiting
    assert not (tmp_path / "cache").exists()


class Later:
    """Waits for the helper."""

    def __init__(self):
        self.renewed = threading.Event()

    def renew(self):
        self.renewed.set()


def test_it_is_swapped_in_once_it_is_compiled(copy, tmp_path, monkeypatch):
    def half(x, y):
        return (x + y) / 2

    tensor = {"shape": ["n"], "dtype": "float32"}
    definition = Definition(
        name="mean",
        op_type="mean",
        axes={"n": {"type": "var"}},
        inputs={"x": tensor, "y": tensor},
        outputs={"z": tensor},
        reference="def run(x, y):\n    return (x + y) / 2\n",
    )
    folder, aside = copy.parent, tmp_path / "aside"
    folder.rename(aside)  # the real compiler takes long, and is run for the cache
    program = f"import os, time; time.sleep(0.5); os.rename({str(aside)!r}, {str(folder)!r})"
    monkeypatch.setattr(fib_apply_helper, "_IN_BACKGROUND", program)
    monkeypatch.setattr(fib_apply_helper, "_waiting", [])
    monkeypatch.setattr(fib_apply_helper, "_begun", False)
    monkeypatch.setenv("FIB_APPLY_HELPER", "1")
    x, y, later = torch.zeros(3), torch.ones(3), Later()
    mean = apply("mean")(lambda x, y: None)
    with enable_apply({"mean": half}, dataset=TraceSet(definitions={"mean": definition})) as handle:
        assert mean(x, y).tolist() == [0.5] * 3
        assert recognition.by_helper() is None
        fib_apply_helper.when_compiled(later.renew)
        assert later.renewed.wait(30)
        assert recognition.by_helper() is not None
        assert mean(x, y).tolist() == [0.5] * 3
        assert mean(x[:2], y[:2]).tolist() == [0.5] * 2
        assert sum(each["hit"] for each in handle.stats().values()) == 3


def test_the_process_in_the_background_finds_what_is_there(helper_cache):
    environment = {**os.environ, "FIB_CACHE_PATH": str(helper_cache), "PATH": ""}
    command = [sys.executable, "-c", fib_apply_helper._IN_BACKGROUND]
    assert subprocess.run(command, env=environment).returncode == 0


def test_a_failure_in_the_background_is_no_more_than_a_line_in_the_log(monkeypatch, caplog):
    monkeypatch.setattr(fib_apply_helper, "_IN_BACKGROUND", "raise SystemExit('no compiler')")
    monkeypatch.setattr(fib_apply_helper, "_waiting", [])
    monkeypatch.setattr(fib_apply_helper, "_begun", False)
    caplog.set_level(logging.DEBUG, "fib_apply_helper")
    later = Later()
    fib_apply_helper.when_compiled(later.renew)
    for thread in threading.enumerate():
        if thread.name == "fib-apply-helper":
            thread.join(30)
    assert not later.renewed.is_set()
    assert "does not compile: no compiler" in caplog.text


def test_a_compiler_that_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    bad = tmp_path / "bad.cpp"
    bad.write_text('#error "not today"\n')
    monkeypatch.setattr(fib_apply_helper, "_SOURCE", bad)
    with pytest.raises(BuildError, match="does not compile") as caught:
        fib_apply_helper.build_helper()
    assert "not today" in caught.value.log
    assert fib_apply_helper.helper() is None


@pytest.mark.parametrize(
    "damage", ["truncated", "empty", "one byte", "missing", "no digest", "unfinished"]
)
def test_a_damaged_library_is_not_used(copy, damage, caplog):
    content = copy.read_bytes()
    copy.unlink()
    changed = {
        "truncated": content[:1000],
        "empty": b"",
        "one byte": content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
        "no digest": content,
        "unfinished": content,
    }
    if damage in changed:
        copy.write_bytes(changed[damage])
    if damage == "no digest":
        (copy.parent / "sha256").unlink()
    if damage == "unfinished":
        (copy.parent / ".complete").unlink()
    with caplog.at_level(logging.WARNING):
        assert fib_apply_helper.helper() is None
        assert fib_apply_helper.helper() is None
    assert caplog.text.count("cannot be used") == (damage != "unfinished")
