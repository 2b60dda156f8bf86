// RMSNorm on the CPU, with a misspelt name.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

static void RmsNorm(tvm::ffi::TensorView hidden_states, tvm::ffi::TensorView weight,
                    tvm::ffi::TensorView output) {
  const int64_t tokens = hiden_states.size(0);
  (void)tokens;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, RmsNorm)
