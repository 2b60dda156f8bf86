"""Building ahead with the builders of plugins, compilers included."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from flashinfer_bench.apply.building import Builds
from flashinfer_bench.compile import BuilderRegistry
from flashinfer_bench.data import Definition, Solution
from flashinfer_bench.errors import BuildCapabilityError, BuildError, UnknownNameError

needs_compiler = [
    pytest.mark.plugin("tvm_ffi"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler for C++"),
]
pytestmark = [pytest.mark.torch, pytest.mark.plugin("python")]

MATRIX = {"shape": ["n", "k"], "dtype": "float32"}
DEFINITION = Definition.model_validate(
    {
        "name": "double",
        "op_type": "op",
        "axes": {"n": {"type": "var"}, "k": {"type": "const", "value": 4}},
        "inputs": {"x": MATRIX},
        "outputs": {"y": MATRIX},
        "reference": "def run(x):\n    return x + x\n",
    }
)
CPP = """
#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

static void Double(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const auto* from = static_cast<const float*>(x.data_ptr());
  auto* to = static_cast<float*>(y.data_ptr());
  for (int64_t i = 0; i < x.size(0) * x.size(1); ++i) to[i] = 2 * from[i];
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Double)
"""
PYTHON = "def run(x):\n    return x * 2\n"


def solution(name, source=PYTHON, language="python"):
    file = "main.cpp" if language == "cpp" else "main.py"
    return Solution.model_validate(
        {
            "name": name,
            "definition": "double",
            "author": "author",
            "spec": {
                "language": language,
                "target_hardware": ["cpu"],
                "entry_point": f"{file}::run",
                "destination_passing_style": language == "cpp",
            },
            "sources": [{"path": file, "content": source}],
        }
    )


class Source:
    """A dataset in memory."""

    def __init__(self, *solutions):
        self.solutions = {each.name: each for each in solutions}

    def definition(self, name):
        return DEFINITION

    def solution(self, name):
        if name not in self.solutions:
            raise UnknownNameError(f"no solution is called {name!r}")
        return self.solutions[name]


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """Give each test a cache of its own, and the compiler that is found on PATH."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    for name in ("CXX", "CC", "MAX_JOBS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def make():
    """Return a function that makes builds of solutions, with the builders of all plugins."""
    registries = []

    def of(*solutions):
        registries.append(BuilderRegistry.from_catalog())
        return Builds(Source(*solutions), registries[-1])

    yield of
    for registry in registries:
        registry.cleanup()


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Make a compiler that notes each source, and for some does what its text says."""
    script = tmp_path / "c++"
    script.write_text(
        textwrap.dedent(
            f"""\
            #!/bin/sh
            for each in "$@"; do
              case "$each" in *.cpp)
                echo "$each" >> {tmp_path}/compiled
                if grep -q DIES "$each"; then kill -9 $$; fi
                if grep -q KILLED "$each" && [ ! -e {tmp_path}/memory ]; then
                  echo "c++: fatal error: Killed signal terminated program cc1plus"; exit 1
                fi
                if grep -q SLEEPS "$each"; then echo $$ > {tmp_path}/asleep; exec sleep 600; fi;;
              esac
            done
            exec c++ "$@"
            """
        )
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return tmp_path


def compiled(folder):
    path = folder / "compiled"
    return path.read_text().splitlines() if path.exists() else []


def check(runnable):
    """Call a solution and look at what it gives."""
    import torch

    x = torch.arange(12.0).reshape(3, 4)
    if runnable.metadata.destination_passing_style:
        out = torch.empty_like(x)
        runnable(x, out)
    else:
        out = runnable(x)
    assert torch.equal(out, x + x)


def test_python_is_built_and_works(make):
    builds = make(solution("py"))
    check(builds.get("py"))
    assert builds.get("py") is builds.get("py")


def test_python_that_cannot_be_loaded_says_why_and_costs_nobody_else(make):
    builds = make(
        solution("py"),
        solution("syntax", "def run(x:\n    return x\n"),
        solution("imports", "import no_such_module_xyz\n" + PYTHON),
        solution("entry", "def walk(x):\n    return x\n"),
        solution("arity", "def run(x, y, z):\n    return x\n"),
        solution("leaves", "import sys\nsys.exit(7)\n"),
    )
    failures = builds.ahead(["py", "syntax", "imports", "entry", "arity", "leaves", "unknown"])
    assert set(failures) == {"syntax", "imports", "entry", "arity", "leaves", "unknown"}
    assert all(isinstance(error, BuildError) for error in failures.values())
    assert "no_such_module_xyz" in str(failures["imports"])
    assert all(name in builds.failed[name] for name in failures)
    check(builds.get("py"))


def test_a_language_without_a_builder_costs_its_solutions_only(make):
    builds = make(solution("py"), solution("fire", "fn run():\n", language="mojo"))
    failures = builds.ahead(["fire", "py"])
    assert set(failures) == {"fire"}
    assert isinstance(failures["fire"], BuildCapabilityError)
    assert "No builder for language 'mojo'" in builds.failed["fire"]
    check(builds.get("py"))


class TestCompilers:
    pytestmark = needs_compiler

    def test_cpp_is_compiled_ahead_next_to_python(self, make, compiler):
        builds = make(
            *(solution(f"cpp{i}", f"{CPP}// {i}", "cpp") for i in range(2)), solution("py")
        )
        assert builds.ahead(["cpp0", "cpp1", "py"], jobs=2) == {}
        assert len(compiled(compiler)) == 2
        for name in ("cpp0", "cpp1", "py"):
            check(builds.get(name))
        assert len(compiled(compiler)) == 2

    def test_another_one_finds_it_on_disk(self, make, compiler):
        make(solution("cpp", CPP, "cpp")).ahead(["cpp"])
        check(make(solution("cpp", CPP, "cpp")).get("cpp"))
        assert len(compiled(compiler)) == 1

    def test_cpp_that_does_not_compile_says_where(self, make):
        wrong = CPP.replace("int64_t i = 0", "int64_t i = nothing")
        builds = make(solution("cpp", CPP, "cpp"), solution("wrong", wrong, "cpp"))
        failures = builds.ahead(["wrong", "cpp"], jobs=2)
        assert set(failures) == {"wrong"}
        assert "nothing" in str(failures["wrong"])
        assert not isinstance(failures["wrong"], BuildCapabilityError)
        assert "main.cpp" in failures["wrong"].log
        check(builds.get("cpp"))

    def test_a_compiler_that_is_killed_costs_its_solution_only(self, make, compiler):
        killed = solution("killed", f"{CPP}// KILLED", "cpp")
        builds = make(killed, solution("cpp", CPP, "cpp"), solution("py"))
        failures = builds.ahead(["killed", "cpp", "py"], jobs=2)
        assert set(failures) == {"killed"}
        assert "was killed" in str(failures["killed"])
        assert "fib build --jobs 1" in failures["killed"].hint
        check(builds.get("cpp"))
        check(builds.get("py"))
        # A call does not try again; who builds ahead, when there is memory, does.
        tries = len(compiled(compiler))
        (compiler / "memory").touch()
        with pytest.raises(BuildCapabilityError, match="was killed"):
            builds.get("killed")
        assert len(compiled(compiler)) == tries
        assert builds.ahead(["killed"]) == {}
        check(builds.get("killed"))
        assert builds.failed == {}

    def test_neither_does_one_that_dies_without_a_word(self, make, compiler):
        dies = solution("dies", f"{CPP}// DIES", "cpp")
        builds = make(dies, solution("cpp", CPP, "cpp"))
        failures = builds.ahead(["dies", "cpp"], jobs=2)
        assert set(failures) == {"dies"}
        assert "illed" in str(failures["dies"])
        check(builds.get("cpp"))

    def test_without_a_compiler_python_still_works(self, make, monkeypatch):
        monkeypatch.setenv("CXX", "no-such-compiler")
        builds = make(solution("cpp", CPP, "cpp"), solution("py"))
        failures = builds.ahead(["cpp", "py"])
        assert set(failures) == {"cpp"}
        assert "no-such-compiler" in str(failures["cpp"])
        check(builds.get("py"))

    def test_two_threads_that_want_the_same_compile_it_once(self, make, compiler):
        builds = make(solution("cpp", CPP, "cpp"))
        meet, found = threading.Barrier(2), []

        def want():
            meet.wait(30)
            found.append(builds.get("cpp"))

        threads = [threading.Thread(target=want) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert len(found) == 2
        assert found[0] is found[1]
        assert len(compiled(compiler)) == 1


CHILD = """
import sys
import test_building_real as here
from flashinfer_bench.apply.building import Builds

slow = here.solution("slow", here.CPP + "// SLEEPS", "cpp")
builds = Builds(here.Source(slow, here.solution("later")))
try:
    builds.ahead(["slow", "later"], jobs=1)
except KeyboardInterrupt:
    here.check(builds.get("later"))  # the process is as good as before
    print("interrupted", sorted(builds.failed), flush=True)
"""


class TestCtrlC:
    pytestmark = needs_compiler

    @pytest.mark.skipif(os.name == "nt", reason="it sends signals")
    def test_it_ends_the_wait_and_no_compiler_holds_up_the_end(self, compiler):
        def asleep():
            path = compiler / "asleep"
            return path.read_text().strip() if path.exists() else ""

        child = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            cwd=os.path.dirname(__file__),  # noqa: PTH120
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            while not asleep():
                assert child.poll() is None
                time.sleep(0.02)
            child.send_signal(signal.SIGINT)  # to Python alone: the compiler sleeps on
            line = child.stdout.readline()
            child.wait(60)
        finally:
            child.kill()
            if asleep():  # which ninja has put into a process group of its own
                os.kill(int(asleep()), signal.SIGKILL)
            child.stdout.close()
            child.wait(60)
        assert line == "interrupted []\n"
        assert child.returncode == 0
