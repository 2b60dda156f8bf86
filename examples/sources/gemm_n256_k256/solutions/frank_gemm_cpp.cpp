// C = A @ B.T on the CPU: both matrices are read along their rows.
#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

namespace {

void Gemm(tvm::ffi::TensorView a, tvm::ffi::TensorView b, tvm::ffi::TensorView c) {
  const int64_t rows = a.size(0), depth = a.size(1), columns = b.size(0);
  const auto* left = static_cast<const float*>(a.data_ptr());
  const auto* right = static_cast<const float*>(b.data_ptr());
  auto* out = static_cast<float*>(c.data_ptr());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      float lanes[8] = {};
      for (int64_t k = 0; k < depth; k += 8) {
        for (int64_t lane = 0; lane < 8; ++lane) {
          lanes[lane] += left[i * depth + k + lane] * right[j * depth + k + lane];
        }
      }
      float total = 0.0f;
      for (float lane : lanes) total += lane;
      out[i * columns + j] = total;
    }
  }
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Gemm)
