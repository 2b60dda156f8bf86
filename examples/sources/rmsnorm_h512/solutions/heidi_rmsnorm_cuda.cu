// RMSNorm: one block of 128 threads for each token.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

namespace {

constexpr float kEps = 1e-6f;
constexpr int kThreads = 128;

__global__ void RmsNormKernel(const __nv_bfloat16* x, const __nv_bfloat16* weight,
                              __nv_bfloat16* out, int hidden) {
  __shared__ float partial[kThreads / 32];
  x += static_cast<int64_t>(blockIdx.x) * hidden;
  out += static_cast<int64_t>(blockIdx.x) * hidden;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < hidden; i += kThreads) {
    const float value = __bfloat162float(x[i]);
    squares += value * value;
  }
  for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = squares;
  __syncthreads();
  float total = 0.0f;
  for (float part : partial) total += part;
  const float scale = rsqrtf(total / hidden + kEps);
  for (int i = threadIdx.x; i < hidden; i += kThreads) {
    out[i] = __float2bfloat16(__bfloat162float(x[i]) * scale * __bfloat162float(weight[i]));
  }
}

void RmsNorm(tvm::ffi::TensorView hidden_states, tvm::ffi::TensorView weight,
             tvm::ffi::TensorView output) {
  const DLDevice device = hidden_states.device();
  auto* stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  RmsNormKernel<<<hidden_states.size(0), kThreads, 0, stream>>>(
      static_cast<const __nv_bfloat16*>(hidden_states.data_ptr()),
      static_cast<const __nv_bfloat16*>(weight.data_ptr()),
      static_cast<__nv_bfloat16*>(output.data_ptr()), static_cast<int>(hidden_states.size(1)));
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << cudaGetErrorString(error);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, RmsNorm)
