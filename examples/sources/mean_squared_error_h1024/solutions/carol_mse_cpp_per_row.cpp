// Mean squared error that divides by the number of rows only.
#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

static void MeanSquaredError(tvm::ffi::TensorView prediction, tvm::ffi::TensorView target,
                             tvm::ffi::TensorView loss) {
  const int64_t rows = prediction.size(0), count = rows * prediction.size(1);
  const auto* a = static_cast<const float*>(prediction.data_ptr());
  const auto* b = static_cast<const float*>(target.data_ptr());
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) total += (a[i] - b[i]) * (a[i] - b[i]);
  *static_cast<float*>(loss.data_ptr()) = static_cast<float>(total / rows);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, MeanSquaredError)
