"""Solutions that can be built, and how they are called."""

from __future__ import annotations

import pytest
import torch

from fib_builder_tvmffi.builder import TVMFFIBuilder

WRITES = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Add)"
RETURNS = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Sum)"


class TestRunnable:
    def test_it_computes(self, build, make_solution, inputs, expected):
        out = torch.full((3, 8), torch.nan)
        runnable = build(make_solution(WRITES, base="typed"))
        assert runnable(*inputs, out) is None
        assert torch.equal(out, expected)

    def test_by_name(self, build, make_solution, inputs, expected):
        x, y, scale = inputs
        runnable = build(make_solution(WRITES, base="typed"))
        assert torch.equal(runnable(scale=scale, y=y, x=x), expected)

    def test_value_returning(self, build, make_solution, inputs, expected):
        solution = make_solution(RETURNS, base="typed", destination_passing_style=False)
        result = build(solution)(*inputs)
        assert type(result) is torch.Tensor
        assert torch.equal(result, expected)

    def test_value_returning_called_with_destinations(self, build, make_solution, inputs, expected):
        solution = make_solution(RETURNS, base="typed", destination_passing_style=False)
        out = torch.full((3, 8), torch.nan)
        build(solution).call_destination_passing(*inputs, out)
        assert torch.equal(out, expected)

    def test_metadata(self, build, make_solution, definition):
        metadata = build(make_solution(WRITES, base="typed", name="my kernel")).metadata
        assert metadata.build_type == "tvm_ffi"
        assert metadata.definition is definition
        assert metadata.solution_name == "my kernel"
        assert metadata.destination_passing_style
        assert metadata.misc["symbol"] == "run"
        assert metadata.misc["entry_point"] == "kernel.cpp::run"
        assert metadata.misc["signature"] == "(DLTensor*, DLTensor*, float, DLTensor*) -> None"

    def test_a_whole_number_is_taken_for_a_float(self, build, make_solution, inputs):
        x, y, _ = inputs
        assert torch.equal(
            build(make_solution(WRITES, base="typed"))(x=x, y=y, scale=2), (x + y) * 2
        )

    def test_what_a_function_returns_outlives_the_runnable(
        self, build, make_solution, inputs, expected
    ):
        runnable = build(make_solution(RETURNS, base="typed", destination_passing_style=False))
        result = runnable(*inputs)
        runnable.cleanup()
        with pytest.raises(RuntimeError, match="cleaned up"):
            runnable(*inputs)
        assert torch.equal(result, expected)
        del result


class TestCollections:
    """Several outputs: TVM FFI has containers of its own for them."""

    INCLUDES = (
        "#include <tvm/ffi/container/array.h>\n"
        "#include <tvm/ffi/container/map.h>\n"
        "#include <tvm/ffi/container/tuple.h>\n"
        "static ffi::Tensor Difference(ffi::TensorView x, ffi::TensorView y, double s) {\n"
        "  ffi::Tensor out = Sum(x, y, s);\n"
        "  const float *a = (float*)x.data_ptr(), *b = (float*)y.data_ptr();\n"
        "  float* c = (float*)out.data_ptr();\n"
        "  for (int64_t i = 0; i < x.numel(); ++i) c[i] = (a[i] - b[i]) * s;\n"
        "  return out;\n"
        "}\n"
    )

    @pytest.mark.parametrize(
        ("returned", "made"),
        [
            ("ffi::Array<ffi::Tensor>", "return {Sum(x, y, s), Difference(x, y, s)};"),
            (
                "ffi::Tuple<ffi::Tensor, ffi::Tensor>",
                "return ffi::Tuple<ffi::Tensor, ffi::Tensor>(Sum(x, y, s), Difference(x, y, s));",
            ),
            (
                "ffi::Map<ffi::String, ffi::Tensor>",
                'return {{"difference", Difference(x, y, s)}, {"out", Sum(x, y, s)}};',
            ),
        ],
        ids=["array", "tuple", "map"],
    )
    def test_they_become_tuples_of_torch_tensors(
        self, build, make_solution, inputs, expected, two_outputs, returned, made
    ):
        source = (
            f"{self.INCLUDES}{returned} Both(ffi::TensorView x, ffi::TensorView y, double s) "
            f"{{ {made} }}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Both)\n"
        )
        solution = make_solution(source, base="typed", destination_passing_style=False)
        result = build(solution, two_outputs)(*inputs)
        x, y, scale = inputs
        assert type(result) is tuple
        assert [type(member) for member in result] == [torch.Tensor, torch.Tensor]
        assert torch.equal(result[0], expected)
        assert torch.equal(result[1], (x - y) * scale)

    def test_a_tensor_with_memory_of_its_own_is_torch_s_too(
        self, build, make_solution, inputs, expected
    ):
        source = (
            "struct Alloc {\n"
            "  void AllocData(DLTensor* t) { t->data = new float[24]; }\n"
            "  void FreeData(DLTensor* t) { delete[] static_cast<float*>(t->data); }\n"
            "};\n"
            "static ffi::Tensor Own(ffi::TensorView x, ffi::TensorView y, double scale) {\n"
            "  auto out = ffi::Tensor::FromNDAlloc(Alloc(), x.shape(), x.dtype(), x.device());\n"
            "  Add(x, y, scale, out);\n  return out;\n}\n"
            "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Own)\n"
        )
        runnable = build(make_solution(source, base="typed", destination_passing_style=False))
        result = runnable(*inputs)
        runnable.cleanup()
        assert type(result) is torch.Tensor
        assert torch.equal(result, expected)

    def test_a_type_that_is_not_told_in_advance(self, build, make_solution, inputs, expected):
        source = (
            "static ffi::Any Some(ffi::TensorView x, ffi::TensorView y, double scale) "
            "{ return Sum(x, y, scale); }\n"
            "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Some)\n"
        )
        runnable = build(make_solution(source, base="typed", destination_passing_style=False))
        assert torch.equal(runnable(*inputs), expected)

    def test_a_number_stays_one(self, build, make_solution, inputs):
        source = (
            "static double First(ffi::TensorView x, ffi::TensorView, double) "
            "{ return *(float*)x.data_ptr(); }\n"
            "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, First)\n"
        )
        solution = make_solution(source, base="typed", destination_passing_style=False)
        assert build(solution)(*inputs) == inputs[0][0, 0].item()


class TestConvention:
    def test_one_that_is_not_stated_is_destination_passing(self, build, make_solution):
        assert build(make_solution()).metadata.destination_passing_style

    def test_unless_the_signature_fits_nothing_but_the_other(
        self, build, make_solution, inputs, expected
    ):
        runnable = build(make_solution(RETURNS, base="typed"))
        assert not runnable.metadata.destination_passing_style
        assert torch.equal(runnable(*inputs), expected)

    def test_a_function_that_says_nothing_of_itself_is_believed(self, build, make_solution):
        runnable = build(make_solution(destination_passing_style=False))
        assert not runnable.metadata.destination_passing_style
        assert runnable.metadata.misc["signature"] is None


class TestCanBuild:
    @pytest.mark.parametrize("language", ["cpp", "cuda", "CUDA"])
    @pytest.mark.parametrize("binding", [None, "tvm-ffi", "tvm_ffi"])
    def test_its_own(self, make_solution, language, binding):
        solution = make_solution(language=language, binding=binding)
        assert TVMFFIBuilder().can_build(solution)

    @pytest.mark.parametrize("spec", [{"language": "python"}, {"binding": "torch"}])
    def test_others(self, make_solution, spec):
        assert not TVMFFIBuilder().can_build(make_solution(**spec))

    def test_sources_that_are_torch_s(self, make_solution):
        source = "#include <torch/extension.h>\nPYBIND11_MODULE(a, m) {}\n"
        solution = make_solution(files={"kernel.cpp": source, "plain.h": ""})
        assert not TVMFFIBuilder().can_build(solution)

    def test_it_is_available_here(self):
        assert TVMFFIBuilder.is_available()


def test_an_error_that_the_function_throws(build, make_solution, inputs):
    source = (
        "static void Fail(ffi::TensorView x, ffi::TensorView, double, ffi::TensorView) {\n"
        '  TVM_FFI_THROW(ValueError) << "wants " << x.ndim() + 1 << " dimensions";\n'
        "}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Fail)\n"
    )
    runnable = build(make_solution(source, base="typed"))
    with pytest.raises(ValueError, match="wants 3 dimensions"):
        runnable(*inputs, torch.empty(3, 8))


def test_any_other_exception(build, make_solution, inputs):
    source = (
        "#include <stdexcept>\n"
        "static void Fail(ffi::TensorView, ffi::TensorView, double, ffi::TensorView) {\n"
        '  throw std::out_of_range("too far");\n'
        "}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Fail)\n"
    )
    runnable = build(make_solution(source, base="typed"))
    with pytest.raises(RuntimeError, match="too far"):
        runnable(*inputs, torch.empty(3, 8))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "Expected 4 but got 0 arguments"),
        ((1, 2, 3, 4), r"Mismatched type on argument #\d .* Expected `DLTensor\*` but got `int`"),
    ],
)
def test_wrong_arguments_are_a_type_error_of_the_library(build, make_solution, arguments, reason):
    with pytest.raises(TypeError, match=reason):
        build(make_solution(WRITES, base="typed"))(*arguments)
