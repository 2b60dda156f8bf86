// The same without TVM FFI's C++: compiled at once, good for all that is not about functions.
#include <tvm/ffi/c_api.h>

#ifndef FACTOR
#define FACTOR 1.0
#endif

static float* data(const TVMFFIAny* argument) {
  DLTensor* tensor = (DLTensor*)argument->v_ptr;
  if (argument->type_index == kTVMFFITensor) tensor = (DLTensor*)((char*)argument->v_obj + sizeof(TVMFFIObject));
  return (float*)tensor->data;
}

static int add(const TVMFFIAny* args, double factor) {
  const float *x = data(args), *y = data(args + 1);
  float* out = data(args + 3);
  for (int i = 0; i < 3 * 8; ++i) out[i] = (x[i] + y[i]) * args[2].v_float64 * factor;
  return 0;
}

// What the macros write for a function.
#define EXPORT(name) extern "C" int __tvm_ffi_##name(void*, const TVMFFIAny* args, int32_t, TVMFFIAny*)
