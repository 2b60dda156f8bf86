// Mean squared error on the CPU; the output is a tensor without dimensions.
#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

namespace {

void MeanSquaredError(tvm::ffi::TensorView prediction, tvm::ffi::TensorView target,
                      tvm::ffi::TensorView loss) {
  const int64_t count = prediction.size(0) * prediction.size(1);
  const auto* a = static_cast<const float*>(prediction.data_ptr());
  const auto* b = static_cast<const float*>(target.data_ptr());
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    total += difference * difference;
  }
  *static_cast<float*>(loss.data_ptr()) = static_cast<float>(total / count);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, MeanSquaredError)
