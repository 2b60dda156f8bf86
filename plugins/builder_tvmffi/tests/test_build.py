"""Solutions that can be built, and how they are called."""

import pytest
import torch

RETURNS = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Sum)"


def test_what_a_function_returns_outlives_the_runnable(build, make_solution, inputs, expected):
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


def test_an_error_that_the_function_throws(build, make_solution, inputs):
    source = (
        "static void Fail(ffi::TensorView x, ffi::TensorView, double, ffi::TensorView) {\n"
        '  TVM_FFI_THROW(ValueError) << "wants " << x.ndim() + 1 << " dimensions";\n'
        "}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Fail)\n"
    )
    runnable = build(make_solution(source, base="typed"))
    with pytest.raises(ValueError, match="wants 3 dimensions"):
        runnable(*inputs, torch.empty(3, 8))
