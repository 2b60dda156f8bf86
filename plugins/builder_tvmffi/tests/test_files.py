"""Solutions of several files, and what is rebuilt when one of them changes."""

from __future__ import annotations

import pytest
import torch

from fib_builder_tvmffi.builder import TVMFFIBuilder
from flashinfer_bench.errors import BuildError

CALLS = '#include "plain.h"\nint work(const TVMFFIAny*);\nEXPORT(run) { return work(args); }\n'
WORKS = '#include "{header}"\nint work(const TVMFFIAny* args) {{ return add(args, {factor}); }}\n'


class TestSeveralFiles:
    def test_two_files_of_one_name_in_different_folders(self, run, make_solution, expected):
        files = {
            "a/kernel.cpp": CALLS.replace("plain.h", "../plain.h"),
            "b/kernel.cpp": WORKS.format(header="../plain.h", factor=2.0),
        }
        solution = make_solution(files=files, entry="a/kernel.cpp::run")
        assert torch.equal(run(solution), expected * 2)

    def test_headers_in_folders_by_relative_paths(self, run, make_solution, expected):
        files = {
            "src/main.cc": '#include "../include/deep/all.hpp"\n'
            "EXPORT(run) { return add(args, N); }\n",
            "include/deep/all.hpp": '#pragma once\n#include "../../plain.h"\n#include "n.cuh"\n',
            "include/deep/n.cuh": "constexpr double N = 4.0;\n",
        }
        solution = make_solution(files=files, entry="src/main.cc::run")
        assert torch.equal(run(solution), expected * 4)

    def test_headers_from_the_root(self, run, make_solution, expected):
        files = {
            "src/main.cxx": '#include "include/n.h"\n#include "plain.h"\n'
            "EXPORT(run) { return add(args, N); }\n",
            "include/n.h": "#define N 8.0\n",
        }
        assert torch.equal(run(make_solution(files=files, entry="src/main.cxx::run")), expected * 8)

    def test_names_with_blanks_and_signs(self, run, make_solution, expected):
        name = "my $(kernels) & 'more'/ker nel: #1.cpp".replace(":", "")
        files = {name: CALLS.replace("plain.h", "../plain.h"), "it's.cpp": WORKS.format(
            header="plain.h", factor=2.0
        )}  # fmt: skip
        assert torch.equal(run(make_solution(files=files, entry=f"{name}::run")), expected * 2)

    @pytest.mark.parametrize("name", ["a|b.cpp", "-x.cpp", "@x.cpp", "$in.cpp", "kärnel 核.cpp"])
    def test_names_that_mean_something_to_ninja_or_a_compiler(
        self, run, make_solution, expected, name
    ):
        files = {name: CALLS, "b.cpp": WORKS.format(header="plain.h", factor=2.0)}
        assert torch.equal(run(make_solution(files=files, entry=f"{name}::run")), expected * 2)

    def test_such_a_file_for_nvcc(self, build, make_solution, nvcc, monkeypatch):
        monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a")
        files = {"-x.cu": 'extern "C" int __tvm_ffi_run() { return 0; }\n'}
        build(make_solution(files=files, entry="-x.cu::run", language="cuda"))

    def test_a_cache_whose_path_has_blanks(
        self, run, make_solution, expected, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "a $cache: of 'mine'"))
        files = {"main.cpp": '#include "d/n.h"\nEXPORT(run) { return add(args, 2.0); }\n'}
        files["d/n.h"] = '#include "plain.h"\n'
        assert torch.equal(run(make_solution(files=files, entry="main.cpp::run")), expected * 2)

    def test_cuda_in_such_a_cache(self, build, make_solution, tmp_path, monkeypatch, nvcc):
        monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "a $cache: of 'mine'"))
        monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a")
        source = 'extern "C" int __tvm_ffi_run() { return 0; }\n'
        name = "my kernel.cu"
        build(make_solution(files={name: source}, entry=f"{name}::run", language="cuda"))

    def test_c(self, run, make_solution, expected):
        c = (
            "#include <tvm/ffi/c_api.h>\n"
            "int work(const TVMFFIAny* args, int (*add)(const TVMFFIAny*, double)) {\n"
            "  int class = 2;  /* no C++ */\n"
            "  return add(args, class);\n}\n"
        )
        cpp = (
            '#include "plain.h"\n'
            'extern "C" int work(const TVMFFIAny*, int (*)(const TVMFFIAny*, double));\n'
            "EXPORT(run) { return work(args, add); }\n"
        )
        files = {"work.c": c, "main.cpp": cpp}
        options = {"cflags": ["-std=c++20"]}  # which must not go to the C compiler
        solution = make_solution(files=files, entry="main.cpp::run", options=options)
        assert torch.equal(run(solution), expected * 2)

    def test_other_files_are_left_alone(self, run, make_solution, expected):
        files = {
            "kernel.cpp": '#include "plain.h"\nEXPORT(run) { return add(args, 1.0); }\n',
            "README.md": "# no code",
            "kernel.py": "import nothing",
            "notes.inc": "@@@",
        }
        assert torch.equal(run(make_solution(files=files)), expected)

    def test_the_order_of_files_makes_no_difference(self, build, make_solution):
        names = ("kernel.cpp", "b.cpp")
        texts = (CALLS, WORKS.format(header="plain.h", factor=2.0))
        files = dict(zip(names, texts, strict=True))
        other = dict(reversed(files.items()))
        first, second = (build(make_solution(files=f)) for f in (files, other))
        assert first.metadata.misc["library"] == second.metadata.misc["library"]


class TestChanges:
    KERNEL = '#include "plain.h"\n#include "n.h"\nEXPORT(run) { return add(args, N); }\n'

    def test_only_a_header_of_the_solution(self, run, make_solution, expected):
        for factor in (2, 4):
            files = {"kernel.cpp": self.KERNEL, "n.h": f"#define N {factor}.0\n"}
            assert torch.equal(run(make_solution(files=files)), expected * factor)

    def test_only_a_header_outside_of_the_solution(
        self, build, make_solution, inputs, expected, tmp_path
    ):
        # In one process: the system would hand out the old library for the old path.
        files = {"kernel.cpp": self.KERNEL.replace('"n.h"', "<n.h>")}
        solution = make_solution(files=files, options={"include_paths": [str(tmp_path)]})
        for factor in (2, 4, 2):
            (tmp_path / "n.h").write_text(f"#define N {factor}.0\n")
            runnable = build(solution)
            out = torch.full((3, 8), torch.nan)
            runnable(*inputs, out)
            assert torch.equal(out, expected * factor)
            assert runnable.metadata.misc["fresh"]
        assert not build(solution).metadata.misc["fresh"]

    def test_a_header_that_a_cuda_file_reads(
        self, make_solution, definition, tmp_path, nvcc, monkeypatch
    ):
        monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a")
        solution = make_solution(
            files={"kernel.cu": '#include <n.h>\nextern "C" int __tvm_ffi_run() { return N; }\n'},
            entry="kernel.cu::run",
            language="cuda",
            options={"include_paths": [str(tmp_path)]},
        )
        builder = TVMFFIBuilder()
        for text, fresh in (("1", True), ("1", False), ("2", True)):
            (tmp_path / "n.h").write_text(f"#define N {text}\n")
            artefact = builder.compile(definition, solution)
            assert artefact.fresh is fresh
            assert str(tmp_path / "n.h") in artefact.info.headers

    def test_those_of_tvm_ffi_are_known_by_its_version(self, make_solution, definition):
        builder = TVMFFIBuilder()
        solution = make_solution("TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Add)\n", base="typed")
        (root,) = builder.plan(definition, solution).versioned_roots
        assert (root / "tvm" / "ffi" / "function.h").is_file()
        read = builder.compile(definition, solution).info.headers
        assert [path for path in read if path.startswith(str(root))] == []

    def test_those_of_cuda_are_known_by_its_version(
        self, make_solution, definition, nvcc, monkeypatch
    ):
        monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a")
        files = {"k.cu": '#include <cuda_fp16.h>\nextern "C" int __tvm_ffi_run() { return 0; }\n'}
        solution = make_solution(files=files, entry="k.cu::run", language="cuda")
        read = TVMFFIBuilder().compile(definition, solution).info.headers
        homes = (str(nvcc.home), str(nvcc.home.resolve()))
        assert [path for path in read if path.startswith(homes)] == []


class TestWhatIsKept:
    def test_sources_log_and_library(self, build, make_solution, empty_cache):
        build(make_solution())
        (folder,) = [path for path in (empty_cache / "tvm_ffi").iterdir() if path.is_dir()]
        files = {
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        }
        assert files == {
            ".complete", "build.json", "compiler.log", "objects/solution.so", "sources/kernel.cpp",
            "sources/plain.h",
        }  # fmt: skip

    def test_the_log_has_the_commands(self, make_solution, definition):
        artefact = TVMFFIBuilder().compile(definition, make_solution())
        log = (artefact.folder / "compiler.log").read_text()
        assert "-c kernel.cpp" in log
        assert "-Wl,-z,defs" in log

    def test_nothing_after_a_failure(self, build, make_solution, empty_cache):
        with pytest.raises(BuildError):
            build(make_solution("no C++"))
        assert [path.name for path in (empty_cache / "tvm_ffi").iterdir() if path.is_dir()] == []

    def test_nothing_elsewhere(self, build, make_solution, empty_cache, tmp_path, monkeypatch):
        home = tmp_path / "home"
        home.mkdir()
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setenv("TVM_FFI_CACHE_DIR", str(home / "library"))
        monkeypatch.chdir(home)
        build(make_solution())
        assert list(home.iterdir()) == []
