// C = A @ B.T launched with more threads per block than any device supports.
#include <cuda_runtime.h>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

__global__ void GemmKernel(float* c) { c[threadIdx.x] = 0.0f; }

static void Gemm(tvm::ffi::TensorView a, tvm::ffi::TensorView b, tvm::ffi::TensorView c) {
  GemmKernel<<<1, 4096>>>(static_cast<float*>(c.data_ptr()));
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << cudaGetErrorString(error);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Gemm)
