// Residual addition and RMSNorm: one warp for each token.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

namespace {

constexpr int kHidden = 512;
constexpr int kPerLane = kHidden / 32;

__global__ void AddRmsNormKernel(const __nv_bfloat16* x, const __nv_bfloat16* residual,
                                 const __nv_bfloat16* weight, __nv_bfloat16* out) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kHidden;
  float sum[kPerLane];
  float squares = 0.0f;
  for (int i = 0; i < kPerLane; ++i) {
    const int64_t place = begin + i * 32 + threadIdx.x;
    sum[i] = __bfloat162float(x[place]) + __bfloat162float(residual[place]);
    squares += sum[i] * sum[i];
  }
  for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
  const float scale = rsqrtf(squares / kHidden + 1e-6f);
  for (int i = 0; i < kPerLane; ++i) {
    const int column = i * 32 + threadIdx.x;
    out[begin + column] = __float2bfloat16(sum[i] * scale * __bfloat162float(weight[column]));
  }
}

void AddRmsNorm(tvm::ffi::TensorView hidden_states, tvm::ffi::TensorView residual,
                tvm::ffi::TensorView weight, tvm::ffi::TensorView output) {
  const DLDevice device = hidden_states.device();
  auto* stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  AddRmsNormKernel<<<hidden_states.size(0), 32, 0, stream>>>(
      static_cast<const __nv_bfloat16*>(hidden_states.data_ptr()),
      static_cast<const __nv_bfloat16*>(residual.data_ptr()),
      static_cast<const __nv_bfloat16*>(weight.data_ptr()),
      static_cast<__nv_bfloat16*>(output.data_ptr()));
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << cudaGetErrorString(error);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, AddRmsNorm)
