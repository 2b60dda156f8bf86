// What most solutions look like. Takes a second to compile.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

namespace ffi = tvm::ffi;

static void Add(ffi::TensorView x, ffi::TensorView y, double scale, ffi::TensorView out) {
  const float *a = static_cast<float*>(x.data_ptr()), *b = static_cast<float*>(y.data_ptr());
  float* c = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) c[i] = (a[i] + b[i]) * scale;
}

static ffi::Tensor Sum(ffi::TensorView x, ffi::TensorView y, double scale) {
  ffi::Tensor out = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, x.shape(), x.dtype(), x.device());
  Add(x, y, scale, out);
  return out;
}
