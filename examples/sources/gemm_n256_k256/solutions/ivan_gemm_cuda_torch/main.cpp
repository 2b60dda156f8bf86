// Binds the kernel to torch, on torch's current stream.
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/utils/pybind.h>

cudaError_t LaunchGemm(const float* a, const float* b, float* c, int rows, int columns, int depth,
                       cudaStream_t stream);

static void run(const at::Tensor& A, const at::Tensor& B, at::Tensor& C) {
  C10_CUDA_CHECK(LaunchGemm(A.const_data_ptr<float>(), B.const_data_ptr<float>(),
                            C.mutable_data_ptr<float>(), static_cast<int>(A.size(0)),
                            static_cast<int>(B.size(0)), static_cast<int>(A.size(1)),
                            c10::cuda::getCurrentCUDAStream()));
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
