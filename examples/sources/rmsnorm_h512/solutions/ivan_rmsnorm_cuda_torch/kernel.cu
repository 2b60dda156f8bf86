// One warp for each token; no torch header is included, so nvcc compiles quickly.
#include <cuda_bf16.h>

#include "kernel.cuh"

namespace {

constexpr int kWarps = 4;

__global__ void RmsNormKernel(const __nv_bfloat16* x, const __nv_bfloat16* weight,
                              __nv_bfloat16* out, int64_t tokens, int hidden) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (token >= tokens) return;
  x += token * hidden;
  out += token * hidden;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < hidden; i += 32) {
    const float value = __bfloat162float(x[i]);
    squares += value * value;
  }
  for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
  const float scale = rsqrtf(squares / hidden + 1e-6f);
  for (int i = threadIdx.x; i < hidden; i += 32) {
    out[i] = __float2bfloat16(__bfloat162float(x[i]) * scale * __bfloat162float(weight[i]));
  }
}

}  // namespace

cudaError_t LaunchRmsNorm(const void* x, const void* weight, void* out, int64_t tokens, int hidden,
                          cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>((tokens + kWarps - 1) / kWarps);
  RmsNormKernel<<<blocks, dim3(32, kWarps), 0, stream>>>(
      static_cast<const __nv_bfloat16*>(x), static_cast<const __nv_bfloat16*>(weight),
      static_cast<__nv_bfloat16*>(out), tokens, hidden);
  return cudaGetLastError();
}
