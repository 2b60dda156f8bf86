// RMSNorm as a torch extension that returns a new tensor.
#include <cmath>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/utils/pybind.h>

namespace {

constexpr float kEps = 1e-6f;

at::Tensor run(const at::Tensor& hidden_states, const at::Tensor& weight) {
  at::Tensor output = at::empty_like(hidden_states);
  const int64_t tokens = hidden_states.size(0);
  const int64_t hidden = hidden_states.size(1);
  const at::BFloat16* x = hidden_states.const_data_ptr<at::BFloat16>();
  const at::BFloat16* w = weight.const_data_ptr<at::BFloat16>();
  at::BFloat16* out = output.mutable_data_ptr<at::BFloat16>();
  for (int64_t token = 0; token < tokens; ++token, x += hidden, out += hidden) {
    float squares = 0.0f;
    for (int64_t i = 0; i < hidden; ++i) {
      const float value = x[i];
      squares += value * value;
    }
    const float scale = 1.0f / std::sqrt(squares / hidden + kEps);
    for (int64_t i = 0; i < hidden; ++i) {
      out[i] = static_cast<float>(x[i]) * scale * static_cast<float>(w[i]);
    }
  }
  return output;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
