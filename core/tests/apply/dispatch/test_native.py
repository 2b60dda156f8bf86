"""The helper that is compiled on the machine: building, finding, and what it looks at."""

from __future__ import annotations

import gc
import logging
import shutil
import subprocess
import sys
import threading
import tracemalloc
import warnings

import pytest
import torch

from flashinfer_bench.apply.dispatch import native
from flashinfer_bench.errors import BuildError, CapabilityError

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
    return native.folder() / native._file()


def test_it_is_found_by_a_new_process(helper_cache):
    script = (
        "from flashinfer_bench.apply.dispatch import native, recognition\n"
        "print(native.maker() is not None, type(recognition.recognition()).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"FIB_CACHE_PATH": str(helper_cache), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "ByHelper"]


def test_nothing_is_compiled_unasked(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    assert native.maker() is None
    assert not (tmp_path / "cache").exists()


def test_it_is_compiled_once(helper_cache, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(helper_cache))
    monkeypatch.setattr(native, "_compile", lambda into: pytest.fail("again"))
    assert (native.build() / native._file()).is_file()


def test_a_build_is_seen_by_this_process(helper_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    assert native.maker() is None
    made = helper_cache / native.folder().relative_to(tmp_path / "cache")
    monkeypatch.setattr(
        native, "_compile", lambda into: shutil.copytree(made, into, dirs_exist_ok=True) and None
    )
    native.build()
    assert native.maker() is not None


def test_a_compiler_that_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    bad = tmp_path / "bad.cpp"
    bad.write_text('#error "not today"\n')
    monkeypatch.setattr(native, "_SOURCE", bad)
    with pytest.raises(BuildError, match="does not compile") as caught:
        native.build()
    assert "not today" in caught.value.log
    assert native.maker() is None


def test_no_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(CapabilityError):
        native.build()


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


@pytest.mark.parametrize("damage", ["empty", "missing", "no digest"])
def test_a_damaged_library_is_compiled_anew(copy, helper_cache, damage, monkeypatch):
    if damage == "no digest":
        (copy.parent / "sha256").unlink()
    else:
        copy.unlink()
    if damage == "empty":
        copy.touch()
    made = helper_cache / copy.parent.relative_to(copy.parents[2])
    monkeypatch.setattr(
        native, "_compile", lambda into: shutil.copytree(made, into, dirs_exist_ok=True) and None
    )
    native.build()
    assert native.maker() is not None


def test_an_unfinished_build_is_not_used(copy):
    (copy.parent / ".complete").unlink()
    assert native.maker() is None


def test_another_torch_has_another_place(monkeypatch):
    before = native.folder()
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert native.folder() != before


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


def test_counts_and_names(helper):
    x = torch.zeros(2)
    check = helper([x, x.clone()])
    assert check(x, x) is True
    for args in ((), (x,), (x, x, x)):
        assert check(*args) is False
    assert check(x, y=x) is False


def test_what_it_is_made_of(helper):
    x = torch.zeros(2)
    for bad in ([1], [None], [x, "x"]):
        with pytest.raises(TypeError):
            helper(bad)
    for written in ([1], [-1], [10**6]):
        with pytest.raises(IndexError):
            helper([x], written)
    check = helper([x])
    with pytest.raises(TypeError, match="once"):
        check.__init__((x,), (), 0, 0)
    with pytest.raises(TypeError):
        type(check)()


def test_one_that_was_not_initialised_recognises_nothing(helper):
    kind = type(helper([torch.zeros(1)]))
    assert kind.__new__(kind)(torch.zeros(1)) is False


def test_nested_tensors_are_looked_at_without_harm(helper):
    x = torch.zeros(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are a prototype
        nested = torch.nested.nested_tensor([x, x])
    assert helper([x])(nested) is False
    assert helper([x, x])(x, nested) is False


def test_shared_memory(helper):
    memory = torch.zeros(10)
    first, last, middle = memory[:5], memory[5:], memory[3:8]
    for written in ([0], [1], [0, 1]):
        check = helper([first.clone(), last.clone()], written)
        assert check(first, last) is True
        assert check(last, first) is True
        assert check(first, middle) is False
        assert check(middle, last) is False
        assert check(first, first) is False
    assert helper([first.clone(), last.clone()])(first, middle) is True
    empty = helper([torch.zeros(0), torch.zeros(5)], [0, 1])
    assert empty(memory[2:2], memory[:5]) is True


def test_shared_memory_of_other_types(helper):
    memory = torch.zeros(16, dtype=torch.int8)
    wide, narrow = memory[:8].view(torch.float32), memory[7:9]
    check = helper([torch.zeros(2), torch.zeros(2, dtype=torch.int8)], [1])
    assert check(wide, memory[8:10]) is True
    assert check(wide, narrow) is False


def test_memory_that_was_given_back(helper):
    x, y = torch.zeros(4), torch.zeros(4)
    check = helper([x, y], [1])
    y.untyped_storage().resize_(0)
    assert check(x, y) in (True, False)


def test_grad_mode_is_asked_only_for_tensors_that_want_it(helper):
    plain, wanting = torch.zeros(2), torch.zeros(2, requires_grad=True)
    assert helper([plain])(plain) is True
    check = helper([wanting])
    assert check(wanting) is False
    with torch.no_grad():
        assert check(wanting) is True
    with torch.inference_mode():
        assert check(wanting) is True
    assert helper([wanting], anywhere=True)(wanting) is True


def test_it_keeps_and_leaks_nothing(helper):
    x, y = torch.zeros(3, 4), torch.zeros(3, 4)
    before = sys.getrefcount(x), sys.getrefcount(torch.Tensor)
    checks = [helper([x, y], [1]) for _ in range(100)]
    for check in checks:
        assert check(x, y)
    del checks, check
    assert sys.getrefcount(x) == before[0]
    assert abs(sys.getrefcount(torch.Tensor) - before[1]) < 20


def test_memory_stays_as_it_is(helper):
    x, y = torch.zeros(3, 4), torch.zeros(3, 4)
    check = helper([x, y], [1])
    for _ in range(100):
        check(x, y)
    tracemalloc.start()
    try:
        for _ in range(1000):
            check(x, y)
            check(x, None)
            check(y)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 2000
    finally:
        tracemalloc.stop()


def test_many_threads_at_once(helper):
    tensors = [torch.zeros(n, 4) for n in range(1, 9)]
    checks = [helper([tensor]) for tensor in tensors]
    wrong = []

    def work():
        for _ in range(300):
            for row, check in enumerate(checks):
                for column, tensor in enumerate(tensors):
                    if check(tensor) is not (row == column):
                        wrong.append((row, column))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
