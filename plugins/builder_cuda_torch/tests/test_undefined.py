"""What linkers say about symbols that nobody defines."""

from __future__ import annotations

import pytest

from fib_builder_cuda_torch import undefined

GNU = """\
[2/2] c++ -shared
/usr/bin/ld: objects/0_main.o: in function `Py_DECREF':
main.cpp:(.text+0x1): warning: undefined reference to `_Py_Dealloc'
/usr/bin/ld: objects/0_main.o: in function `run(at::Tensor)':
main.cpp:(.text+0x2): warning: undefined reference to `PyErr_SetString'
main.cpp:(.text+0x3): warning: undefined reference to `launch(at::Tensor)'
main.cpp:(.text+0x4): warning: undefined reference to `launch(at::Tensor)'
/usr/bin/ld: main.o:main.cpp:(.text+0x9): more undefined references to `PyErr_Clear' follow
/usr/bin/ld: objects/0_main.o:(.data.rel+0x8): warning: undefined reference to `PyBaseObject_Type'
/usr/bin/ld: objects/0_main.o: in function `PyInit_name':
main.cpp:(.text+0x5): warning: undefined reference to `PyModule_Create2'
"""

LLVM = """\
ld.lld: warning: undefined symbol: PyErr_SetString
>>> referenced by main.cpp
>>>               objects/0_main.o:(run)
ld.lld: warning: undefined symbol: launch(at::Tensor)
>>> referenced by main.cpp
>>>               objects/0_main.o:(run)
ld.lld: error: something else
"""


def test_pythons_own_symbols_are_left_out():
    assert undefined.without_known(GNU) == (
        "[2/2] c++ -shared\n"
        "/usr/bin/ld: objects/0_main.o: in function `run(at::Tensor)':\n"
        "main.cpp:(.text+0x3): undefined reference to `launch(at::Tensor)'\n"
        "main.cpp:(.text+0x4): undefined reference to `launch(at::Tensor)'\n"
    )


def test_another_linker_says_it_in_another_way():
    assert undefined.without_known(LLVM) == (
        "ld.lld: undefined symbol: launch(at::Tensor)\n"
        ">>> referenced by main.cpp\n"
        ">>>               objects/0_main.o:(run)\n"
        "ld.lld: error: something else\n"
    )


@pytest.mark.parametrize("name", ["Python_like", "PyramidSum", "my_PyErr", "Pyx"])
def test_names_that_only_look_like_pythons(name):
    line = f"main.cpp:(.text+0x5): warning: undefined reference to `{name}'\n"
    assert undefined.open_symbols(undefined.without_known(line)) == [name]


def test_libraries_that_torch_for_cuda_has_loaded():
    names = ["cublasSgemm_v2", "cudnnCreate", "ncclAllReduce", "cublasx", "cudaMalloc", "launch()"]
    text = "".join(f"main.cpp:(.text+0x5): undefined reference to `{name}'\n" for name in names)
    assert undefined.open_symbols(undefined.without_known(text)) == names
    assert undefined.open_symbols(undefined.without_known(text, cuda=True)) == names[3:]


def test_names_are_shown_as_in_the_sources():
    assert undefined.demangled("undefined symbol: _Z6launchPKc") in (
        "undefined symbol: launch(char const*)",
        "undefined symbol: _Z6launchPKc",  # no c++filt here
    )
    assert undefined.demangled("nothing to do") == "nothing to do"
