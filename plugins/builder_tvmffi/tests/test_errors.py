"""Solutions that cannot be built: what is said."""

from __future__ import annotations

import sys

import pytest

from fib_builder_tvmffi.builder import TVMFFIBuilder
from flashinfer_bench.errors import BuildError, CapabilityError


@pytest.fixture
def refused(build, cache_folder):
    """Return a function that builds a solution that cannot be built and returns the error."""

    def run(solution, of=None) -> BuildError:
        with pytest.raises(BuildError) as caught:
            build(solution, of)
        error = caught.value
        assert error.message.startswith(f"solution {solution.name!r}: ")
        assert "\n" not in error.message
        assert str(cache_folder) not in str(error)
        return error

    return run


class TestEntryPoint:
    @pytest.mark.parametrize("symbol", ["my-kernel", "2fast", "run()", "a.b", "a b", "run;"])
    def test_a_symbol_that_is_no_name(self, refused, make_solution, symbol):
        error = refused(make_solution(entry=f"kernel.cpp::{symbol}"))
        assert f"the entry symbol {symbol!r} cannot be the name" in error.message

    def test_a_symbol_that_is_not_exported_names_the_nearest(self, refused, make_solution):
        error = refused(make_solution("EXPORT(runn) { return 0; }\nEXPORT(other) { return 0; }"))
        assert "no source exports 'run'" in error.message
        assert error.hint == "Did you mean 'runn'?"


@pytest.mark.parametrize("flags", [["-o", "elsewhere.so"], ["--version"]])
def test_flags_that_leave_no_library(refused, make_solution, flags):
    error = refused(make_solution(options={"ldflags": flags}))
    assert "produced no library" in error.message
    assert "ldflags" in error.hint


@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_a_symbol_that_is_nowhere(refused, make_solution, language, request):
    if language == "cuda":
        request.getfixturevalue("nvcc")
    source = 'extern "C" int nowhere();\nEXPORT(run) { return nowhere(); }'
    error = refused(make_solution(source, language=language))
    assert "linking failed: " in error.message
    assert "undefined reference to `nowhere'" in error.message
    assert "compile_options.ldflags" in error.hint


class TestSignature:
    RETURNS = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Sum)"
    WRITES = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Add)"

    @pytest.mark.parametrize("style", [True, False])
    def test_a_stated_convention_that_does_not_fit_names_the_other(
        self, refused, make_solution, style
    ):
        source = self.RETURNS if style else self.WRITES
        error = refused(make_solution(source, base="typed", destination_passing_style=style))
        assert "run(DLTensor*, DLTensor*, float" in error.message
        wanted = "gets 4: x, y, scale, out" if style else "gets 3: x, y, scale"
        assert wanted in error.message
        assert f"set destination_passing_style to {str(not style).lower()}" in error.hint


def test_a_broken_installation(make_solution, definition, monkeypatch):
    builder, solution = TVMFFIBuilder(), make_solution()
    artefact = builder.compile(definition, solution)
    monkeypatch.setitem(sys.modules, "tvm_ffi", None)
    with pytest.raises(CapabilityError, match="is installed, but cannot be imported"):
        builder.load(definition, solution, artefact)
