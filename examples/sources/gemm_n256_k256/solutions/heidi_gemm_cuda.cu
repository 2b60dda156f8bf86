// C = A @ B.T through tiles of 16 x 16 in shared memory.
#include <cuda_runtime.h>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

namespace {

constexpr int kTile = 16;

__global__ void GemmKernel(const float* a, const float* b, float* c, int rows, int columns,
                           int depth) {
  __shared__ float left[kTile][kTile + 1];
  __shared__ float right[kTile][kTile + 1];
  const int row = blockIdx.y * kTile + threadIdx.y;
  const int column = blockIdx.x * kTile + threadIdx.x;
  float total = 0.0f;
  for (int k = 0; k < depth; k += kTile) {
    left[threadIdx.y][threadIdx.x] = row < rows ? a[row * depth + k + threadIdx.x] : 0.0f;
    right[threadIdx.y][threadIdx.x] = b[(blockIdx.x * kTile + threadIdx.y) * depth + k + threadIdx.x];
    __syncthreads();
    for (int i = 0; i < kTile; ++i) total += left[threadIdx.y][i] * right[threadIdx.x][i];
    __syncthreads();
  }
  if (row < rows) c[row * columns + column] = total;
}

void Gemm(tvm::ffi::TensorView a, tvm::ffi::TensorView b, tvm::ffi::TensorView c) {
  const DLDevice device = a.device();
  auto* stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  const int rows = static_cast<int>(a.size(0)), columns = static_cast<int>(b.size(0));
  const dim3 grid(columns / kTile, (rows + kTile - 1) / kTile);
  GemmKernel<<<grid, dim3(kTile, kTile), 0, stream>>>(
      static_cast<const float*>(a.data_ptr()), static_cast<const float*>(b.data_ptr()),
      static_cast<float*>(c.data_ptr()), rows, columns, static_cast<int>(a.size(1)));
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << cudaGetErrorString(error);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Gemm)
