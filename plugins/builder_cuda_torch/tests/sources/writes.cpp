// The stable ABI: the library works with other releases of torch, too. Writes its output.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

void run(Tensor x, Tensor y, double scale, Tensor out) {
  const float* a = static_cast<const float*>(x.data_ptr());
  const float* b = static_cast<const float*>(y.data_ptr());
  float* o = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) o[i] = (a[i] + b[i]) * static_cast<float>(scale);
}

STABLE_TORCH_LIBRARY(TORCH_EXTENSION_NAME, m) {
  m.def("run(Tensor x, Tensor y, float scale, Tensor(a!) out) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CPU, m) { m.impl("run", TORCH_BOX(&run)); }
