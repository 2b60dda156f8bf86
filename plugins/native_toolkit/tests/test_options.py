"""What a solution says about how it is compiled, and what is refused."""

import shlex
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_native_toolkit import checked_options, guess_binding
from flashinfer_bench.data import Solution
from flashinfer_bench.errors import BuildError


def solution_with(options=None, text="int x;", **spec):
    return Solution(
        name="s",
        definition="d",
        author="a",
        spec={
            "language": "cpp",
            "target_hardware": ["cpu"],
            "entry_point": "k.cpp::run",
            "compile_options": options,
            **spec,
        },
        sources=[{"path": "k.cpp", "content": text}],
    )


def test_paths_are_found_in_the_sources(tmp_path):
    solution = solution_with({"include_paths": ["inc/deep", ".", "/opt/x", "./a"]})
    assert checked_options(solution).include_paths == ["inc/deep", ".", "/opt/x", "./a"]
    assert checked_options(solution, tmp_path).include_paths == [
        f"{tmp_path}/sources/inc/deep",
        f"{tmp_path}/sources",
        "/opt/x",
        f"{tmp_path}/sources/a",
    ]


OTHER_CODE = [
    *("-wrapper /bin/true", "-specs=x", "--specs=x", "-B/x", "-Bsymbolic", "--prefix=/x", "@flags"),
    *("-fplugin=x", "-iplugindir=/x", "-fmodule-mapper=|x", "-fcompare-debug=-fplugin=x", "-Wa,@x"),
    *(
        "-Wp,-fplugin=x",
        "-foffload-options=-wrapper,x",
        "-Wl,-plugin,x",
        "-Wl,-Bstatic,-plugin-opt=x",
    ),
    *(
        "-Xlinker --plugin=x",
        "-Xlinker @x",
        "-fuse-ld=/x",
        "-fuse-ld=a/b",
        "--ld-path=x",
        "--config x",
    ),
    *("-Xclang -load -Xclang x", "-fpass-plugin=x", "-mllvm -load=x", "--gcc-toolchain=/x"),
]
OTHER_CODE_OF_NVCC = [
    *("-ccbin g++", "--compiler-bindir=/x", "-optf x", "--options-file=x", "-run", "-arbin=/x"),
    *("-Xcompiler=-O2,-wrapper,x", "-Xcompiler -Wl,-Bstatic", "'-Xcompiler=-O2 -wrapper x'"),
    *("-Xptxas=--options-file=x", "-Xcompiler @x", "--run-args x", "-Xlinker=-plugin,x"),
]
HARMLESS = [
    *("-Wl,-Bsymbolic-functions,-Bstatic,-lm,-Bdynamic", "-fuse-ld=gold", "-fuse-ld=lld", "-L/x@2"),
    *(
        "-Xcompiler -fPIC,-Wall",
        "-Xptxas=-v",
        "-gencode arch=compute_80,code=sm_80",
        "-fprofile-use",
    ),
    *(
        "-Wl,-rpath,/x",
        "-Wl,-z,now",
        "-rdc=true",
        "-rdynamic",
        "-loader",
        "-DRUN=1",
        "--library-path=x",
    ),
]


class TestOtherCode:
    """No option has a tool run, load or read options from what the solution names."""

    @pytest.mark.parametrize("flag", OTHER_CODE)
    @pytest.mark.parametrize("field", ["cflags", "cuda_cflags", "ldflags"])
    def test_flags_are_refused(self, field, flag):
        with pytest.raises(BuildError, match=f"compile_options.{field}: .* runs, loads or reads"):
            checked_options(solution_with({field: [flag]}))

    @pytest.mark.parametrize("flag", OTHER_CODE_OF_NVCC)
    def test_those_of_nvcc(self, flag):
        with pytest.raises(BuildError, match="runs, loads or reads") as caught:
            checked_options(solution_with({"cuda_cflags": shlex.split(flag)}))
        assert "NVCC_CCBIN" in caught.value.hint

    @pytest.mark.parametrize("flag", HARMLESS)
    def test_others_are_not(self, flag):
        field = "ldflags" if "-Wl" in flag else "cuda_cflags"
        assert getattr(checked_options(solution_with({field: [flag]})), field) == shlex.split(flag)

    @pytest.mark.parametrize("text", ["$(touch x)", "`touch x`", "-wra''pper", "a;touch x", "<(x)"])
    @pytest.mark.parametrize("place", ["cuda_cflags", "include_paths", "sources"])
    def test_no_shell_of_nvcc_finds_work(self, place, text):
        options = None if place == "sources" else {place: [shlex.quote(f"-DX={text}")]}
        solution = solution_with(options)
        path = f"{text}.cu" if place == "sources" else "k.cu"
        sources = [*solution.sources, {"path": path, "content": ""}]
        solution = Solution.model_validate({**solution.model_dump(), "sources": sources})
        with pytest.raises(BuildError, match=rf"{place}: .* the shell that nvcc starts"):
            checked_options(solution)


texts = st.lists(st.text(min_size=1, max_size=6), max_size=3)


@given(texts, texts)
def test_what_comes_through_holds_no_surprise(flags, paths):
    solution = solution_with({"cflags": flags, "include_paths": paths})
    control = any(ord(char) < 32 or ord(char) == 127 for text in [*flags, *paths] for char in text)
    leaves = any(".." in PurePosixPath(p).parts and not p.startswith("/") for p in paths)
    try:
        words = [word for flag in flags for word in shlex.split(flag)]
    except ValueError:
        words = None
    try:
        options = checked_options(solution)
    except BuildError:
        assert control or leaves or words is None or any("@" in w or "-B" in w for w in words)
    else:
        assert not control
        assert not leaves
        assert (options.cflags, options.include_paths) == (words, paths)


PYBIND = "#include <torch/extension.h>\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}\n"
LIBRARY = "#include <torch/library.h>\nTORCH_LIBRARY(x, m) {}\n"
FFI = "#include <tvm/ffi/function.h>\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Run);\n"


class TestBinding:
    @pytest.mark.parametrize(
        ("text", "binding"),
        [
            (PYBIND, "torch"),
            (LIBRARY, "torch"),
            (FFI, "tvm-ffi"),
            (PYBIND + FFI, "tvm-ffi"),
            ("void run(float* x) {}", "tvm-ffi"),
            ("// see my_torch/extension.html", "tvm-ffi"),
        ],
    )
    def test_it_is_guessed_from_the_sources(self, text, binding):
        assert guess_binding(solution_with(text=text)) == binding

    @pytest.mark.parametrize("binding", ["torch", "tvm-ffi", "tvm_ffi", "mine"])
    def test_what_is_declared_is_believed(self, binding):
        declared = solution_with(text=PYBIND, binding=binding)
        assert guess_binding(declared) == binding.replace("_", "-")
        assert type(guess_binding(declared)) is str
