#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

static __global__ void Kernel() {}

// Fill the outputs, which come last: data_ptr() is the memory of a tensor, size(0) its first size.
static void Run(
    PARAMETERS) {
  int current = 0;
  cudaGetDevice(&current);
  auto* stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, current));
  Kernel<<<1, 256, 0, stream>>>();
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << cudaGetErrorString(error);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Run)
