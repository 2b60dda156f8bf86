// The header that most extensions include; it takes longest to compile.
#include <torch/extension.h>

torch::Tensor run(torch::Tensor x, torch::Tensor y, double scale) { return (x + y) * scale; }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
