// Operators without the stable ABI.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

at::Tensor run(const at::Tensor& x, const at::Tensor& y, double scale) {
  at::Tensor out = at::empty_like(x);
  const float* a = x.const_data_ptr<float>();
  const float* b = y.const_data_ptr<float>();
  float* o = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) o[i] = (a[i] + b[i]) * static_cast<float>(scale);
  return out;
}

TORCH_LIBRARY(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
