// Mean absolute error in place of the mean squared one.
#include <cmath>

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

static double run(const at::Tensor& prediction, const at::Tensor& target) {
  const float* a = prediction.const_data_ptr<float>();
  const float* b = target.const_data_ptr<float>();
  double total = 0.0;
  for (int64_t i = 0; i < prediction.numel(); ++i) total += std::fabs(a[i] - b[i]);
  return total / static_cast<double>(prediction.numel());
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
