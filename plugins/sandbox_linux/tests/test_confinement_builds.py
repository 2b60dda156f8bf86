"""Compilers on hostile sources, and what a confined process may do to the cache of builds."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from fib_sandbox_linux import landlock
from fib_sandbox_linux.confinement import _tool_guard
from fib_sandbox_linux.system import Unavailable
from fib_tests.plugins import PLUGIN_FOLDER
from flashinfer_bench.bench.executors.base import CandidateFailed
from flashinfer_bench.bench.executors.fork import ForkExecutor
from flashinfer_bench.bench.sandbox import Sandbox
from flashinfer_bench.compile.cache import guard_tools, tool_guard
from flashinfer_bench.data import Solution

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these measures"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler 'cc'"),
]

DOUBLE = """
void run(const float *x, float *y, long n) { for (long i = 0; i < n; i++) y[i] = 2 * x[i]; }
"""


def in_c(*directives, name="in_c"):
    source = "\n".join([*(f"//! {line}" for line in directives), f"// {name}", DOUBLE])
    spec = {"language": "testc", "target_hardware": ["cpu"], "entry_point": "main.c::run"}
    return Solution.model_validate(
        {
            "name": name,
            "definition": "double",
            "author": "tester",
            "spec": spec,
            "sources": [{"path": "main.c", "content": source}],
        }
    )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def executor(cache, monkeypatch):
    monkeypatch.syspath_prepend(PLUGIN_FOLDER)
    monkeypatch.setenv("FIB_PLUGINS", "compiling_plugin")
    executor = ForkExecutor("cpu")
    yield executor
    executor.close()


@pytest.fixture
def definition(definition_of):
    return definition_of(
        name="double",
        inputs={"x": {"shape": ["n"], "dtype": "float32"}},
        outputs={"y": {"shape": ["n"], "dtype": "float32"}},
        reference="def run(x):\n    return x * 2\n",
    )


@pytest.fixture
def loaded(executor, definition):
    """``loaded(solution)``: a confined process with it, as a run starts them."""
    started = []

    def load(solution):
        candidate = executor.spawn()
        started.append(candidate)
        Sandbox().confine(candidate, definition, solution)
        candidate.load(definition, solution, timeout_s=60)
        return candidate

    yield load
    for candidate in started:
        candidate.close()


def compile_ahead(executor, definition, solution):
    compiler = executor.spawn_compiler()
    try:
        held = Sandbox().confine_compiler(compiler)
        return held, compiler.compile(definition, solution, timeout_s=60)
    finally:
        compiler.close()


def doubles(candidate):
    candidate.put_inputs(0, [torch.arange(4.0)], {"n": 4}, timeout_s=30)
    (got,) = candidate.call(0, timeout_s=30)
    return torch.equal(got, torch.arange(4.0) * 2)


def test_what_is_compiled_ahead_is_loaded(executor, definition, cache, loaded):
    _, done = compile_ahead(executor, definition, in_c())
    assert done.fresh
    before = sorted((cache / "compiling_test").iterdir())
    assert doubles(loaded(in_c()))
    assert sorted((cache / "compiling_test").iterdir()) == before
    (own,) = (path for path in (cache / "candidates").iterdir() if path.is_dir())
    assert list((own / "caches").iterdir()) == []


def test_what_is_not_is_compiled_apart(cache, loaded):
    assert doubles(loaded(in_c()))
    assert not (cache / "compiling_test").exists()
    (own,) = (path for path in (cache / "candidates").iterdir() if path.is_dir())
    assert len(list((own / "caches" / "builds" / "compiling_test").glob("*/lib.so"))) == 1
    assert doubles(loaded(in_c()))  # from there


def test_a_compiling_process_writes_to_the_cache_only(executor, definition, tmp_path):
    outside = tmp_path / "outside"
    with pytest.raises(CandidateFailed, match=r"Permission denied|Read-only file system"):
        compile_ahead(executor, definition, in_c(f"note {outside}"))
    assert not outside.exists()


class TestTools:
    """Compilers themselves, which read the source, may write less than the process around them."""

    @pytest.fixture
    def guarded(self, cache, tmp_path):
        (tmp_path / "work").mkdir()
        for name in ("mine", "other"):
            (cache / "builder" / name / "sources").mkdir(parents=True)
        before = tool_guard()
        guard_tools(_tool_guard(tmp_path / "work", cache))
        yield cache / "builder"
        guard_tools(before)

    @pytest.fixture
    def landlocked(self, guarded):
        try:
            landlock.version()
        except Unavailable:
            pytest.skip("this machine does not offer Landlock")
        return guarded

    @pytest.fixture
    def run_tool(self):
        return pytest.importorskip("fib_native_toolkit.run").run_tool

    @pytest.fixture
    def touch(self, run_tool):
        return lambda path, cwd: run_tool(["touch", path], cwd=cwd).returncode

    def test_the_folder_of_the_build_and_what_is_temporary(self, guarded, touch, tmp_path):
        assert touch(guarded / "mine" / "a", guarded / "mine") == 0
        assert touch(guarded / "mine" / "b", guarded / "mine" / "sources") == 0
        assert touch(tmp_path / "work" / "a", guarded / "mine") == 0
        assert touch(Path(os.devnull), guarded / "mine") == 0

    @pytest.mark.parametrize("place", ["other/a", "a", "../a", "mine.lock"])
    def test_nothing_else(self, landlocked, touch, place):
        assert touch(landlocked / place, landlocked / "mine") != 0
        assert not (landlocked / place).exists()

    def test_nothing_at_all_elsewhere(self, landlocked, touch):
        assert touch(landlocked / "mine" / "a", Path("/")) != 0

    @pytest.mark.parametrize(
        "text",
        [
            *('#include "{}"', '#include "../../secret"', '#include "link"'),
            *(
                'asm(".incbin \\"{}\\"");',
                '#include "/etc/passwd"',
                '#include "/proc/self/environ"',
            ),
        ],
    )
    def test_no_other_file_of_the_user_is_read(
        self, landlocked, cache, monkeypatch, run_tool, text
    ):
        mine = landlocked / "mine"
        monkeypatch.setenv("THEIR_OWN", "their own words")
        (cache / "secret").write_text("their own words\n")
        (mine / "link").symlink_to(cache / "secret")
        (mine / "a.c").write_text(text.format(cache / "secret") + "\n")
        done = run_tool(["cc", "-c", "a.c", "-o", "a.o"], cwd=mine, env={"TMPDIR": "."})
        assert done.returncode != 0
        assert not re.search(r"their own words|root:", done.output)
        assert re.search("Permission denied|file not found", done.output)

    def test_what_the_environment_names_is_read(self, guarded, tmp_path, monkeypatch, run_tool):
        (tmp_path / "include").mkdir()
        (tmp_path / "include" / "theirs.h").write_text("int theirs;\n")
        monkeypatch.setenv("CPATH", str(tmp_path / "include"))
        source = guarded / "mine" / "a.cpp"
        source.write_text("#include <theirs.h>\n#include <vector>\nint main() {}\n")
        done = run_tool(["c++", "a.cpp", "-o", "a"], cwd=source.parent, env={"TMPDIR": "."})
        assert (done.returncode, done.output) == (0, "")
