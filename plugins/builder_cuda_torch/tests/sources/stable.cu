// The stable ABI in a file of CUDA: compiles with any build of torch, also one without CUDA.
#include <cuda_runtime.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

__global__ void add(const float* x, const float* y, float scale, float* out, int64_t n) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) out[i] = (x[i] + y[i]) * scale;
}

void run(Tensor x, Tensor y, double scale, Tensor out) {
  const int64_t n = x.numel();
  add<<<(n + 255) / 256, 256>>>(
      static_cast<const float*>(x.data_ptr()), static_cast<const float*>(y.data_ptr()),
      static_cast<float>(scale), static_cast<float*>(out.data_ptr()), n);
}

STABLE_TORCH_LIBRARY(TORCH_EXTENSION_NAME, m) {
  m.def("run(Tensor x, Tensor y, float scale, Tensor(a!) out) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CUDA, m) { m.impl("run", TORCH_BOX(&run)); }
