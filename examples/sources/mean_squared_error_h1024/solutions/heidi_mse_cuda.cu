// Mean squared error: each block sums one row, an atomic joins the sums.
#include <cuda_runtime.h>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

namespace {

constexpr int kThreads = 256;

__global__ void RowKernel(const float* a, const float* b, float* loss, int hidden, float share) {
  __shared__ float partial[kThreads / 32];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * hidden;
  float total = 0.0f;
  for (int i = threadIdx.x; i < hidden; i += kThreads) {
    const float difference = a[begin + i] - b[begin + i];
    total += difference * difference;
  }
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(~0u, total, step);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = total;
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0.0f;
    for (float part : partial) sum += part;
    atomicAdd(loss, sum * share);
  }
}

void MeanSquaredError(tvm::ffi::TensorView prediction, tvm::ffi::TensorView target,
                      tvm::ffi::TensorView loss) {
  const DLDevice device = prediction.device();
  auto* stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  const int rows = static_cast<int>(prediction.size(0)), hidden = static_cast<int>(prediction.size(1));
  auto* out = static_cast<float*>(loss.data_ptr());
  cudaMemsetAsync(out, 0, sizeof(float), stream);
  RowKernel<<<rows, kThreads, 0, stream>>>(static_cast<const float*>(prediction.data_ptr()),
                                           static_cast<const float*>(target.data_ptr()), out, hidden,
                                           1.0f / (static_cast<float>(rows) * hidden));
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << cudaGetErrorString(error);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, MeanSquaredError)
