// Residual addition and RMSNorm on the CPU; allocates its output through torch.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

namespace {

using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

float Widen(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

uint16_t Narrow(float wide) {
  uint32_t bits;
  std::memcpy(&bits, &wide, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

Tensor AddRmsNorm(TensorView hidden_states, TensorView residual, TensorView weight) {
  Tensor output = Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, hidden_states.shape(),
                                       hidden_states.dtype(), hidden_states.device());
  const int64_t tokens = hidden_states.size(0);
  const int64_t hidden = hidden_states.size(1);
  const auto* x = static_cast<const uint16_t*>(hidden_states.data_ptr());
  const auto* r = static_cast<const uint16_t*>(residual.data_ptr());
  const auto* w = static_cast<const uint16_t*>(weight.data_ptr());
  auto* out = static_cast<uint16_t*>(output.data_ptr());
  std::vector<float> sum(hidden);
  for (int64_t token = 0; token < tokens; ++token, x += hidden, r += hidden, out += hidden) {
    float squares = 0.0f;
    for (int64_t i = 0; i < hidden; ++i) {
      sum[i] = Widen(x[i]) + Widen(r[i]);
      squares += sum[i] * sum[i];
    }
    const float scale = 1.0f / std::sqrt(squares / hidden + 1e-6f);
    for (int64_t i = 0; i < hidden; ++i) out[i] = Narrow(sum[i] * scale * Widen(w[i]));
  }
  return output;
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, AddRmsNorm)
