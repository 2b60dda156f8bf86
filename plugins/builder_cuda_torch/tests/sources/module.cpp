// A Python module by pybind11, without the slow <torch/extension.h>. Its functions are for tests of
// what can be told from docstrings.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <tuple>

namespace py = pybind11;
using at::Tensor;

void run_out(const Tensor& x, const Tensor& y, double scale, Tensor out) {
  const float* a = x.const_data_ptr<float>();
  const float* b = y.const_data_ptr<float>();
  float* o = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) o[i] = (a[i] + b[i]) * static_cast<float>(scale);
}

Tensor run(const Tensor& x, const Tensor& y, double scale) {
  Tensor out = at::empty_like(x);
  run_out(x, y, scale, out);
  return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("run", &run, "Adds and scales.");
  m.def("run_out", &run_out, py::arg("x"), py::arg("y"), py::arg("scale"), py::arg("out"));
  m.def("defaults", &run, py::arg("x"), py::arg("y"), py::arg("scale") = 1.0);
  m.def("early_default", &run, py::arg("x"), py::arg("y") = py::none(), py::arg("scale"));
  m.def("both", &run, "Overloaded.");
  m.def("both", &run_out, "Writes -> out.");
  m.def("any_number", [](py::args) -> std::optional<Tensor> { return std::nullopt; });
  m.def("any_number_out", [](const Tensor&, py::args, py::kwargs) {});
  m.def("keyword_only", &run, py::arg("x"), py::arg("y"), py::kw_only(), py::arg("scale"));
  m.def("two", [](const Tensor& x, const Tensor& y, double) { return std::make_tuple(x, y); });
  m.def("too_few", [](const Tensor& x) { return x; });
  m.def("strange_text", [](const Tensor& x, const Tensor&, std::string) { return x; },
        py::arg("x"), py::arg("y"), py::arg("scale") = "a, b) -> (c: 'd\\");
  m.attr("constant") = 3;
}
