"""Solutions that can be built."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading

import pytest
import torch

from fib_builder_cuda_torch.builder import TorchBuilder

KINDS = ["module.cpp", "library.cpp", "returns.cpp", "writes.cpp"]


def expected(inputs):
    x, y, scale = inputs
    return (x + y) * scale


class TestRunnable:
    @pytest.mark.parametrize("kind", KINDS)
    def test_it_computes(self, build, make_solution, inputs, kind):
        runnable = build(make_solution(kind))
        assert runnable.metadata.destination_passing_style is (kind == "writes.cpp")
        assert torch.equal(runnable.call_value_returning(*inputs), expected(inputs))

    def test_by_name(self, build, make_solution, inputs):
        x, y, scale = inputs
        runnable = build(make_solution("returns.cpp"))
        assert torch.equal(runnable(scale=scale, y=y, x=x), expected(inputs))

    def test_destination_passing(self, build, make_solution, inputs):
        runnable = build(make_solution("writes.cpp", destination_passing_style=True))
        out = torch.empty(3, 8)
        assert runnable(*inputs, out) is None
        assert torch.equal(out, expected(inputs))

    def test_value_returning_called_with_destinations(self, build, make_solution, inputs):
        runnable = build(make_solution("returns.cpp", destination_passing_style=False))
        out = torch.empty(3, 8)
        runnable.call_destination_passing(*inputs, out)
        assert torch.equal(out, expected(inputs))

    def test_what_is_called_is_the_compiled_function_itself(self, build, make_solution):
        for kind in ("module.cpp", "returns.cpp"):
            function = build(make_solution(kind))._callable
            assert type(function).__name__ == "builtin_function_or_method"

    @pytest.mark.slow
    def test_the_header_that_most_extensions_include(self, build, make_solution, inputs):
        runnable = build(make_solution("extension.cpp"))
        assert torch.equal(runnable(*inputs), expected(inputs))

    def test_metadata(self, build, make_solution, definition):
        metadata = build(make_solution("returns.cpp", name="my kernel")).metadata
        assert metadata.build_type == "torch"
        assert metadata.definition is definition
        assert metadata.solution_name == "my kernel"
        assert metadata.misc["entry_point"] == "returns.cpp::run"
        assert metadata.misc["library"].endswith(".so")
        assert metadata.misc["found_as"].startswith("operator fib_torch_")

    def test_an_error_of_the_function_is_an_exception(self, build, make_solution):
        runnable = build(make_solution("returns.cpp"))
        with pytest.raises((TypeError, RuntimeError)):
            runnable("text", 1, 2)


class TestCanBuild:
    @pytest.mark.parametrize("language", ["cpp", "cuda", "CUDA"])
    def test_by_binding(self, make_solution, language):
        builder = TorchBuilder()
        assert builder.can_build(make_solution("bare.cpp", language=language))
        assert not builder.can_build(make_solution("bare.cpp", language=language, binding="x"))

    def test_without_a_binding_the_sources_tell(self, make_solution):
        builder = TorchBuilder()
        assert builder.can_build(make_solution("module.cpp", binding=None))
        assert builder.can_build(make_solution("writes.cpp", binding=None))
        assert not builder.can_build(make_solution(files={"a.cpp": "int run();"}, binding=None))

    def test_other_languages(self, make_solution):
        assert not TorchBuilder().can_build(make_solution("bare.cpp", language="python"))

    def test_it_is_available_where_these_tests_run(self):
        assert TorchBuilder.is_available()


class TestFiles:
    def test_equal_names_in_folders_headers_and_a_nested_entry(self, build, make_solution):
        files = {
            "src/ops/kernel.cpp": '#include "kernel.h"\nint first() { return ONE; }\n',
            "src/kernel.cpp": '#include "ops/kernel.h"\n'
            '#include "config.h"\n'
            '#include "shared/limits.h"\n'
            "int first();\n#define VALUE (first() + CONFIG + LIMIT)\n#include BARE\n",
            "src/ops/kernel.h": "#pragma once\n#define ONE 1\n",
            "include/config.h": "#define CONFIG 2\n",
            "shared/limits.h": "#define LIMIT 4\n",
            "src/notes.md": "Not for a compiler.",
        }
        files["src/bare.inc"] = make_solution("bare.cpp").get_entry_source().content
        options = {"include_paths": ["include"], "cflags": ["'-DBARE=\"bare.inc\"'"]}
        solution = make_solution(files=files, entry="src/kernel.cpp::run", compile_options=options)
        assert build(solution)() // 100 == 7

    @pytest.mark.parametrize(
        "path", ["my kernel.cpp", "a$b.cpp", "it's.cpp", "-x.cpp", "a|b&c.cpp", "kärnel 核.cpp"]
    )
    def test_names_that_mean_something_to_a_shell(self, build, make_solution, source, path):
        solution = make_solution(files={path: source("bare.cpp")}, name="1 weird; $(name)")
        assert build(solution)() // 100 == 1

    def test_flags_reach_the_compiler_as_they_are(self, build, make_solution, source):
        text = "#include <cstring>\n#define VALUE (int)std::strlen(TEXT)\n" + source("bare.cpp")
        flag = shlex.quote("-DTEXT=\"a 'b' $c `d` \\\\ e\"")
        options = {"cflags": [flag, "-O1", "-std=c++17"]}
        solution = make_solution(files={"main.cpp": text}, compile_options=options)
        assert build(solution)() // 100 == len("a 'b' $c `d` \\ e")

    @pytest.mark.parametrize(("limit", "given"), [("3", "-j 3"), ("", "-j 1 -l")])
    def test_how_many_compilers_run_at_once(
        self, build, make_solution, own_cache, tmp_path, monkeypatch, limit, given
    ):
        ninja = tmp_path / "bin" / "ninja"
        ninja.parent.mkdir()
        script = f'#!/bin/sh\necho "$@" >> {tmp_path}/called\nexec {shutil.which("ninja")} "$@"\n'
        ninja.write_text(script)
        ninja.chmod(0o755)
        monkeypatch.setenv("PATH", f"{ninja.parent}:{os.environ['PATH']}")
        monkeypatch.setenv("MAX_JOBS", limit)
        build(make_solution("bare.cpp"))
        assert given in (tmp_path / "called").read_text()

    def test_a_compiler_behind_another_command(self, build, make_solution, monkeypatch):
        monkeypatch.setenv("CXX", "env FIB_TEST=1 g++")
        assert build(make_solution("bare.cpp"))() // 100 == 1

    def test_libraries(self, build, make_solution, source, tmp_path):
        (tmp_path / "helper.cpp").write_text('extern "C" int helper() { return 3; }\n')
        command = ["c++", "-fPIC", "-c", "helper.cpp", "-o", "my helper.o"]
        subprocess.run(command, cwd=tmp_path, check=True)
        text = 'extern "C" int helper();\n#define VALUE helper()\n' + source("bare.cpp")
        options = {"ldflags": [shlex.quote(str(tmp_path / "my helper.o"))]}
        solution = make_solution(files={"main.cpp": text}, compile_options=options)
        assert build(solution)() // 100 == 3

    def test_openmp_needs_no_flag_for_linking(self, build, make_solution, source):
        text = "#include <omp.h>\n#define VALUE (omp_get_num_procs() > 0)\n" + source("bare.cpp")
        solution = make_solution(files={"main.cpp": text}, compile_options={"cflags": ["-fopenmp"]})
        assert build(solution)() // 100 == 1


class TestOneProcess:
    def test_solutions_do_not_share_what_is_inline(self, build, make_solution):
        # GCC makes such variables one for the whole process, unless it is told not to.
        first, second = (
            build(make_solution("bare.cpp", compile_options={"cflags": [f"-DVALUE={n}"]}))
            for n in (11, 12)
        )
        start = first() - 1100, second() - 1200
        assert (first() - 1100, second() - 1200) == (start[0] + 1, start[1] + 1)
        assert first() - 1100 == start[0] + 2

    def test_a_library_is_loaded_once(self, build, make_solution):
        first, second = build(make_solution("bare.cpp")), build(make_solution("bare.cpp"))
        assert first._callable is second._callable
        assert first() + 1 == second()

    def test_the_same_solution_from_another_cache(self, build, make_solution, inputs, own_cache):
        # Operators registered twice would end the process: each build has a name of its own.
        runnable = build(make_solution("returns.cpp"))
        assert str(own_cache) in runnable.metadata.misc["library"]
        assert torch.equal(runnable(*inputs), expected(inputs))

    def test_after_a_header_has_changed(self, build, make_solution, source, own_cache, tmp_path):
        header = tmp_path / "value.h"
        files = {"main.cpp": "#include <value.h>\n" + source("bare.cpp")}
        options = {"include_paths": [str(tmp_path)]}
        values = []
        for value in (31, 32):
            header.write_text(f"#define VALUE {value}\n")
            os.utime(header, (value, value))
            values.append(build(make_solution(files=files, compile_options=options))() // 100)
        assert values == [31, 32]

    def test_a_header_of_a_system_folder_that_has_changed(
        self, make_solution, definition, source, own_cache, tmp_path
    ):
        text = "#include <value.h>\n" + source("bare.cpp")
        options = {"cflags": ["-isystem", str(tmp_path)]}
        solution = make_solution(files={"main.cpp": text}, compile_options=options)
        builder = TorchBuilder()
        for value, fresh in (("1", True), ("1", False), ("22", True)):
            (tmp_path / "value.h").write_text(f"#define VALUE {value}\n")
            artefact = builder.compile(definition, solution)
            assert artefact.fresh is fresh
            assert str(tmp_path / "value.h") in artefact.info.headers

    def test_headers_of_known_versions_are_not_looked_at(
        self, make_solution, definition, own_cache
    ):
        builder, solution = TorchBuilder(), make_solution("writes.cpp")
        known = tuple(map(str, builder.plan(definition, solution).versioned_roots))
        read = builder.compile(definition, solution).info.headers
        assert [path for path in read if path.startswith(known)] == []

    def test_after_a_rebuild(self, build, make_solution, inputs, own_cache):
        misc = build(make_solution("returns.cpp")).metadata.misc
        with open(misc["library"], "r+b") as file:  # noqa: PTH123 - as something damages it
            file.truncate(100)
        again = build(make_solution("returns.cpp"))
        assert again.metadata.misc["fresh"]
        assert torch.equal(again(*inputs), expected(inputs))

    def test_names_of_authors_do_not_count(self, build, make_solution):
        libraries = {
            build(make_solution("bare.cpp", name=name)).metadata.misc["library"]
            for name in ("a", "b")
        }
        assert len(libraries) == 1

    def test_a_module_with_a_name_of_its_own(self, build, make_solution):
        before = dict(sys.modules)
        options = {"cflags": ["-DMODULE_NAME=json"]}
        assert build(make_solution("bare.cpp", compile_options=options))() // 100 == 1
        assert sys.modules["json"] is json
        assert set(sys.modules) == set(before)

    def test_cleaning_up_leaves_others_alone(self, build, make_solution):
        first, second = build(make_solution("bare.cpp")), build(make_solution("bare.cpp"))
        first.cleanup()
        assert second() // 100 == 1
        with pytest.raises(RuntimeError, match="cleaned up"):
            first()

    def test_threads(self, make_solution, definition, own_cache):
        solution = make_solution("bare.cpp", compile_options={"cflags": ["-DVALUE=21"]})
        made = []
        threads = [
            threading.Thread(target=lambda: made.append(TorchBuilder().build(definition, solution)))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({runnable._callable for runnable in made}) == 1
        assert sum(runnable.metadata.misc["fresh"] for runnable in made) == 1


def test_a_helper_named_like_a_function_of_libc_is_the_solution_s_own(build, make_solution):
    source = """
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>
extern "C" int getpid() { return 42; }
static void run(const at::Tensor& x, const at::Tensor& y, double scale, at::Tensor& out) {
  out.fill_(getpid());
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""
    files = {"main.cpp": source}
    runnable = build(make_solution(files=files, destination_passing_style=True))
    out = torch.empty(3, 8)
    runnable(torch.ones(3, 8), torch.ones(3, 8), 0.5, out)
    assert out.eq(42).all()
