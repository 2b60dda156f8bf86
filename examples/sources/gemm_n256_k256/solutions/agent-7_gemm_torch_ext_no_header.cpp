// C = A @ B.T as a torch extension that includes a file that does not exist.
#include "gemm_tiles.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

static void run(const at::Tensor& A, const at::Tensor& B, at::Tensor& C) { gemm_tiles(A, B, C); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
