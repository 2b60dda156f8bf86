from __future__ import annotations

import pytest

from flashinfer_bench.compile.toolkit import build_failed, describe_exception, first_error

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


def raised_by(root, files, entry):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    namespace = {"__name__": "module"}
    try:
        exec(compile(files[entry], str(root / entry), "exec"), namespace)
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def test_the_place_is_the_innermost_one_in_the_solution(tmp_path):
    text = "import json\ndef inner():\n    json.loads('{')\ndef outer():\n    inner()\nouter()\n"
    headline, log = describe_exception(raised_by(tmp_path, {"m.py": text}, "m.py"), tmp_path)
    assert headline.startswith("m.py:3: json.decoder.JSONDecodeError: Expecting property name")
    assert 'File "m.py", line 6' in log
    assert "json/decoder.py" in log


def test_a_syntax_error_is_placed_where_it_is(tmp_path):
    error = raised_by(tmp_path, {"sub/m.py": "x = 1\ndef f(:\n"}, "sub/m.py")
    headline, log = describe_exception(error, tmp_path)
    assert headline == "sub/m.py:2: SyntaxError: invalid syntax"
    assert "def f(:" in log
