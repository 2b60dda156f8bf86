// RMSNorm whose kernel calls a function of the host, which nvcc refuses.
#include <cuda_runtime.h>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

static float HostOnly(float x) { return x; }

__global__ void RmsNormKernel(const float* x, float* out) {
  out[threadIdx.x] = HostOnly(x[threadIdx.x]);
}

static void RmsNorm(tvm::ffi::TensorView hidden_states, tvm::ffi::TensorView weight,
                    tvm::ffi::TensorView output) {
  RmsNormKernel<<<1, 32>>>(static_cast<const float*>(hidden_states.data_ptr()),
                           static_cast<float*>(output.data_ptr()));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, RmsNorm)
