// Mean squared error as a torch extension that returns a Python number.
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

static double run(const at::Tensor& prediction, const at::Tensor& target) {
  const int64_t count = prediction.numel();
  const float* a = prediction.const_data_ptr<float>();
  const float* b = target.const_data_ptr<float>();
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    total += difference * difference;
  }
  return total / static_cast<double>(count);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
