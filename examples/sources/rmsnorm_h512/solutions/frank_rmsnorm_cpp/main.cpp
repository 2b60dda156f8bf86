// RMSNorm on the CPU, in two passes over each row.
#include <cmath>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include "bf16.h"

namespace {

constexpr float kEps = 1e-6f;

void RmsNorm(tvm::ffi::TensorView hidden_states, tvm::ffi::TensorView weight,
             tvm::ffi::TensorView output) {
  const int64_t tokens = hidden_states.size(0);
  const int64_t hidden = hidden_states.size(1);
  const auto* x = static_cast<const uint16_t*>(hidden_states.data_ptr());
  const auto* w = static_cast<const uint16_t*>(weight.data_ptr());
  auto* out = static_cast<uint16_t*>(output.data_ptr());
  for (int64_t token = 0; token < tokens; ++token, x += hidden, out += hidden) {
    float squares = 0.0f;
    for (int64_t i = 0; i < hidden; ++i) squares += widen(x[i]) * widen(x[i]);
    const float scale = 1.0f / std::sqrt(squares / hidden + kEps);
    for (int64_t i = 0; i < hidden; ++i) out[i] = narrow(widen(x[i]) * scale * widen(w[i]));
  }
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, RmsNorm)
