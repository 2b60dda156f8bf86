"""The plugin as the host sees it."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

from fib_builder_tvmffi import probe as module
from fib_builder_tvmffi.probe import find_tvm_ffi, probe, probe_cuda
from fib_tests.scaled_add import run_example
from flashinfer_bench.errors import CapabilityError


class TestProbes:
    def test_what_is_here_is_named_with_its_version(self, monkeypatch):
        monkeypatch.setattr(module, "find_cxx", lambda: "a compiler")
        assert re.search(r"(^|, )apache-tvm-ffi \S+, a compiler$", probe().reason)

    def test_without_tvm_ffi(self, monkeypatch):
        def missing():
            raise CapabilityError("apache-tvm-ffi is not installed", hint="pip install it")

        monkeypatch.setattr(module, "find_tvm_ffi", missing)
        for answer in (probe(), probe_cuda()):
            assert not answer.ok
            assert "apache-tvm-ffi is not installed" in answer.reason
            assert answer.remedy == "pip install it"


def test_the_installed_tvm_ffi():
    import tvm_ffi

    found = find_tvm_ffi()
    assert found.version == importlib.metadata.version("apache-tvm-ffi")
    assert str(found) == f"apache-tvm-ffi {found.version}"
    assert str(found.include_path) == tvm_ffi.libinfo.find_include_path()
    assert str(found.library_path / "libtvm_ffi.so") == tvm_ffi.libinfo.find_libtvm_ffi()


README = Path(__file__).parent.parent / "README.md"
CPP = re.findall(r"^```cpp\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


def test_the_example(tmp_path):
    (tmp_path / "scaled_add.cpp").write_text(CPP[0])
    done = run_example(README, tmp_path)
    assert (done.stdout, done.stderr) == ("True 1.0\n", "")


def test_the_other_snippets_compile(build, make_solution, nvcc, monkeypatch):
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a")
    assert len(CPP) > 2
    snippets = "".join(f"{{\n{snippet.replace('…', '')}\n}}\n" for snippet in CPP[1:])
    source = (
        '#include "typed.h"\n__global__ void kernel() {}\n'
        "static void F(ffi::TensorView x, ffi::TensorView, double, ffi::TensorView) {\n"
        f"  int grid = 1, block = 1;\n{snippets}"
        "  (void)grid; (void)block;\n}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(run, F)\n"
    )
    build(make_solution(files={"a.cu": source}, base="typed", entry="a.cu::run", language="cuda"))
