// Launches on the stream that is torch's current one.
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>

__global__ void add(const float* x, const float* y, float scale, float* out, int64_t n) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) out[i] = (x[i] + y[i]) * scale;
}

void launch(const at::Tensor& x, const at::Tensor& y, double scale, at::Tensor& out) {
  const int64_t n = x.numel();
  const int64_t blocks = (n + 255) / 256;
  add<<<blocks, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      x.const_data_ptr<float>(), y.const_data_ptr<float>(), static_cast<float>(scale),
      out.mutable_data_ptr<float>(), n);
}
