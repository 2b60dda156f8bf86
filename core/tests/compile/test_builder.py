"""Names of builds, sources on disk, errors of compilers, and builders that are not installed."""

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flashinfer_bench.compile import builders
from flashinfer_bench.compile.toolkit import (
    build_failed,
    check_relative_path,
    content_digest,
    describe_exception,
    first_error,
    package_name,
    write_sources,
)
from flashinfer_bench.data import Solution
from flashinfer_bench.errors import StorageError, UnsafePathError


@pytest.mark.parametrize(
    ("of", "change"),
    [
        ("solution", {"source": "def run(x, y):\n    return y + x\n"}),
        ("solution", {"files": {"main.py": "def run(x, y):\n    return x + y\n", "extra.h": ""}}),
        ("solution", {"language": "triton"}),
        ("solution", {"binding": "torch"}),
        ("solution", {"destination_passing_style": True}),
        ("solution", {"destination_passing_style": False}),
        ("solution", {"dependencies": ["cublas"]}),
        ("definition", {"name": "other"}),
        ("definition", {"inputs": {"x": {"shape": ["n"], "dtype": "float32"}}}),
        ("definition", {"outputs": {"z": {"shape": ["n", "k"], "dtype": "float16"}}}),
        ("definition", {"outputs": {"w": {"shape": ["n", "k"], "dtype": "float32"}}}),
        ("definition", {"constraints": ["n > 0"]}),
    ],
)
def test_whatever_changes_the_build_changes_the_digest(make_definition, make_solution, of, change):
    changes = {"definition": {}, "solution": {}, of: change}
    changed = make_definition(**changes["definition"]), make_solution(**changes["solution"])
    assert content_digest(*changed) != content_digest(make_definition(), make_solution())


NAMES = st.text(min_size=1, max_size=60)


@given(name=NAMES, prefix=st.sampled_from(["fib_python", "", "9lives", "x"]))
def test_any_name_gives_an_identifier(name, prefix):
    digest = "0123456789abcdef" * 4
    found = package_name(prefix, Solution.model_construct(name=name), digest)
    assert found.isidentifier()
    assert found.isascii()
    assert found.endswith(digest)
    assert len(found) <= len(prefix) + 24 + 64 + 3


# ---------------------------------------------------------------------------------------- sources


def source(path, content="x = 1\n"):
    return SimpleNamespace(path=path, content=content)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("main.py", "main.py"),
        ("a//b.py", "a/b.py"),
        ("a/./b.cu", "a/b.cu"),
        ("größe.py", "größe.py"),
        ("..hidden", "..hidden"),
    ],
)
def test_paths_below_a_folder_are_allowed(path, expected):
    assert check_relative_path(path).as_posix() == expected


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "names no file"),
        ("/etc/passwd", "is absolute"),
        ("..", "leaves its folder"),
        ("../x", "leaves its folder"),
        ("a/../../x", "leaves its folder"),
        ("a\\..\\b", "backslash"),
        ("C:evil.py", "colon"),
        ("a\0b", "control character"),
        ("a\nb.py", "control character"),
        ("a/\x7f", "control character"),
        ("\ud800.py", "not valid Unicode"),
        ("a/" + "x" * 256, "more than 255 bytes"),
        ("ü" * 128, "more than 255 bytes"),
    ],
)
def test_every_other_path_is_refused_with_the_reason(path, reason):
    with pytest.raises(UnsafePathError, match=reason):
        check_relative_path(path)


PATHS = st.one_of(
    st.text(max_size=30),
    st.lists(
        st.sampled_from(["..", ".", "a", "b.py", "", " ", "~", "C:", "\\", "%2e%2e", "/", "…"]),
        max_size=6,
    ).map("/".join),
)


@given(paths=st.lists(PATHS, max_size=4))
@example(paths=["a", "a/b"])
@example(paths=["a/b", "a"])
@example(paths=["x", "x"])
def test_whatever_the_paths_nothing_is_written_elsewhere(tmp_path_factory, paths):
    outside = tmp_path_factory.mktemp("outside")
    root = outside / "root"
    try:
        written = write_sources(root, [source(path, path.upper()) for path in paths])
    except (UnsafePathError, StorageError):
        written = []
    assert {entry.name for entry in outside.iterdir()} <= {"root"}
    for file in written:
        assert root in file.parents
        assert ".." not in file.parts


@pytest.mark.parametrize(
    "paths", [["a.py", "a.py"], ["a.py", "./a.py"], ["a", "a/b"], ["a/b/c", "a/b"]]
)
def test_two_sources_cannot_have_one_place(tmp_path, paths):
    with pytest.raises(UnsafePathError, match="already exists"):
        write_sources(tmp_path / "root", [source(path) for path in paths])


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
def test_a_linked_folder_is_not_followed(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "sub").symlink_to(tmp_path / "outside")
    with pytest.raises(UnsafePathError):
        write_sources(tmp_path / "root", [source("sub/main.py")])
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_full_disk_is_a_storage_error(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(StorageError, match="No space left"):
        write_sources(tmp_path, [source("main.py")])


# ----------------------------------------------------------------------------------------- errors

NVCC = """\
kernel.cu(12): warning #177-D: variable "x" was declared but never referenced
kernel.cu(14): error: identifier "blockIdxx" is undefined
1 error detected in the compilation of "kernel.cu".
"""

NINJA = """\
[1/3] g++ -DLOG="error: x" -Wall -c t2.cpp -o w.o
t2.cpp: In function 'int f()':
t2.cpp:1:14: warning: unused variable 'SomeError' [-Wunused-variable]
    1 | int f(){ int SomeError; throw 1; return 0; }
      |              ^~~~~~~~~
[2/3] g++ -DLOG="error: x" -Werror -MD -MF u.o.d -c t.cpp -o u.o
FAILED: [code=1] u.o
g++ -DLOG="error: x" -Werror -MD -MF u.o.d -c t.cpp -o u.o
t.cpp:4:68: error: no matching function for call to 'push_back(X)'
ninja: build stopped: subcommand failed.
"""

NINJA_SAYS_NOTHING = """\
FAILED: u.o
/opt/cross/error/g++ -c fatal_error: -o u.o
Killed
ninja: build stopped: subcommand failed.
"""

NVCC_WARNS_FIRST = """\
k.cu(2): warning #177-D: variable "KeyError" was declared but never referenced
  __attribute__((global)) void k(float* x) { int KeyError = 3; }
                                                 ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

k.cu(7): error: identifier "foo" is undefined
"""

RELOCATION = """\
/usr/bin/ld: warning: x.o: missing .note.GNU-stack section implies executable stack
/usr/bin/ld: NOTE: This behaviour is deprecated and will be removed in a future version
/usr/bin/ld: skipping incompatible /usr/lib/libx.so when searching for -lx
/usr/bin/ld: u.o: relocation R_X86_64_32 against `.rodata' can not be used; recompile with -fPIC
collect2: error: ld returned 1 exit status
"""

SNIPPET = """\
a.cpp:3:5: warning: comparison of integers [-Wsign-compare]
    3 |   throw IndexError("error: no");
a.cpp:9:5: error: 'x' was not declared
"""


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (NINJA, "t.cpp:4:68: error: no matching function"),
        (NINJA_SAYS_NOTHING, "Killed"),
        (NVCC_WARNS_FIRST, 'k.cu(7): error: identifier "foo" is undefined'),
        (RELOCATION, "/usr/bin/ld: u.o: relocation R_X86_64_32"),
        (SNIPPET, "a.cpp:9:5: error: 'x' was not declared"),
        ("nvlink error   : Undefined reference to 'f' in 'e.o'", "nvlink error   : Undefined"),
        ("note: x\nc++: fatal error: Killed signal terminated program cc1plus", "c++: fatal"),
        ("ninja: error: 'tt.cpp', needed by 'u.o', missing", "ninja: error: 'tt.cpp'"),
        ("ld.lld: error: undefined symbol: missing()", "ld.lld: error: undefined symbol"),
        (
            "/usr/bin/ld: cannot find -lx: No such file\ncollect2: error: ld returned 1",
            "/usr/bin/ld",
        ),
        ("ninja: build stopped: subcommand failed.\n", ""),
        ("warning.cpp:3:4: error: 'note: x'\nb.cpp:1: error: y", "warning.cpp:3:4: error"),
        ("nothing that looks so\nthe end\n\n", "the end"),
        ("", ""),
    ],
)
def test_the_first_error_is_found(log, expected):
    assert first_error(log).startswith(expected)


def test_a_build_error_says_the_first_error_and_keeps_the_whole_log():
    error = build_failed("my_kernel", "nvcc", NVCC, hint="Install CUDA.")
    assert str(error).startswith("solution 'my_kernel': nvcc failed: kernel.cu(14): error")
    assert error.log == NVCC
    assert error.hint == "Install CUDA."


def described(root, name, text):
    """Run code that raises, and describe what it raised."""
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text(text)
    with pytest.raises((ValueError, SyntaxError)) as caught:
        exec(compile(text, str(root / name), "exec"), {"__name__": "module"})
    return describe_exception(caught.value, root)


def test_the_place_is_the_innermost_one_in_the_solution(tmp_path):
    text = "import json\ndef inner():\n    json.loads('{')\ndef outer():\n    inner()\nouter()\n"
    headline, log = described(tmp_path, "m.py", text)
    assert headline.startswith("m.py:3: json.decoder.JSONDecodeError: Expecting property name")
    assert 'File "m.py", line 6' in log
    assert "json/decoder.py" in log


def test_a_syntax_error_is_placed_where_it_is(tmp_path):
    headline, log = described(tmp_path, "sub/m.py", "x = 1\ndef f(:\n")
    assert headline == "sub/m.py:2: SyntaxError: invalid syntax"
    assert "def f(:" in log


def test_a_builder_that_is_not_installed_says_what_to_install(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    for name in [name for name in sys.modules if name.startswith("fib_builder_")]:
        monkeypatch.delitem(sys.modules, name)
    for name in builders.__all__:
        told = f"{name} is provided by .* is not installed; .*pip install .* fib-builder-"
        with pytest.raises(ImportError, match=told):
            getattr(builders, name)


def test_a_builder_that_cannot_be_imported_says_why(monkeypatch):
    monkeypatch.setitem(sys.modules, "fib_builder_triton", ModuleType("fib_builder_triton"))
    monkeypatch.setitem(sys.modules, "fib_builder_triton.builder", None)
    with pytest.raises(ImportError, match=r"fib_builder_triton\.builder"):
        _ = builders.TritonBuilder
