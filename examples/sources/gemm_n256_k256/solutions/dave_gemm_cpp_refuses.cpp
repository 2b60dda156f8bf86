// C = A @ B.T that rejects all inputs it gets.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

static void Gemm(tvm::ffi::TensorView a, tvm::ffi::TensorView b, tvm::ffi::TensorView c) {
  if (a.ndim() != 3) TVM_FFI_THROW(ValueError) << "A has " << a.ndim() << " dimensions, not 3";
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Gemm)
