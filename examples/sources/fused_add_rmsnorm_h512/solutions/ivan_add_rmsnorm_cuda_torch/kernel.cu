// One block of 256 threads for each token, two elements to a thread.
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace {

__global__ void AddRmsNormKernel(const __nv_bfloat162* x, const __nv_bfloat162* residual,
                                 const __nv_bfloat162* weight, __nv_bfloat162* out) {
  __shared__ float partial[8];
  const int64_t place = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  const float2 a = __bfloat1622float2(x[place]);
  const float2 b = __bfloat1622float2(residual[place]);
  const float2 w = __bfloat1622float2(weight[threadIdx.x]);
  const float2 sum = make_float2(a.x + b.x, a.y + b.y);
  float squares = sum.x * sum.x + sum.y * sum.y;
  for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = squares;
  __syncthreads();
  float total = 0.0f;
  for (float part : partial) total += part;
  const float scale = rsqrtf(total / 512 + 1e-6f);
  out[place] = __floats2bfloat162_rn(sum.x * scale * w.x, sum.y * scale * w.y);
}

}  // namespace

cudaError_t LaunchAddRmsNorm(const void* x, const void* residual, const void* weight, void* out,
                             int64_t tokens, cudaStream_t stream) {
  AddRmsNormKernel<<<static_cast<unsigned>(tokens), 256, 0, stream>>>(
      static_cast<const __nv_bfloat162*>(x), static_cast<const __nv_bfloat162*>(residual),
      static_cast<const __nv_bfloat162*>(weight), static_cast<__nv_bfloat162*>(out));
  return cudaGetLastError();
}
